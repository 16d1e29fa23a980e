"""Folders of every kind for the contract, and one of S3 for what only stores have."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.support.object_stores import ObjectStore, StoreUnavailable, azurite, google
from tests.support.store_proxy import StoreProxy, store_proxy

from pgsluice.stores.contract import Folder
from pgsluice.stores.places import folder_at

BUCKET = "lake"
MakeFolder = Callable[..., Folder]


@pytest.fixture(scope="session")
def google_store() -> Iterator[ObjectStore]:
    with google() as store:
        store.make_bucket(BUCKET)
        yield store


@pytest.fixture(scope="session")
def azure_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    yield from _running(azurite(tmp_path_factory.mktemp("azurite")))


def _running(starting: AbstractContextManager[ObjectStore]) -> Iterator[ObjectStore]:
    try:
        store = starting.__enter__()
    except StoreUnavailable as why:
        pytest.skip(str(why))
    store.make_bucket(BUCKET)
    yield store
    starting.__exit__(None, None, None)


# One worker starts Azurite, which takes half a minute.
_AZURE = pytest.param("azure", marks=pytest.mark.xdist_group("azure"))


@pytest.fixture(params=["disk", "s3", "google", _AZURE])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """An empty folder of each kind."""
    if request.param == "disk":
        return folder_at(str(tmp_path / "lake"))
    store: ObjectStore = request.getfixturevalue(
        "s3_store" if request.param == "s3" else f"{request.param}_store"
    )
    return folder_at(f"{store.scheme}://{BUCKET}/{uuid.uuid4()}", store.options)


@pytest.fixture
def s3_folder(s3_store: ObjectStore) -> MakeFolder:
    """``s3_folder(**options)``: the same new folder in S3 each time, with other options."""
    url = f"s3://{BUCKET}/{uuid.uuid4()}"

    def make(**options: str) -> Folder:
        return folder_at(url, {**s3_store.options, **options})

    return make


@pytest.fixture
def proxy(s3_store: ObjectStore) -> Iterator[StoreProxy]:
    with store_proxy(s3_store.endpoint) as proxy:
        yield proxy
