"""``pgsluice check`` asks a place whether it keeps two writers apart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.object_stores import SECRET, ObjectStore
from tests.support.store_proxy import StoreProxy

from pgsluice.stores.places import folder_at
from pgsluice.stores.probe import why_unfit


@pytest.mark.parametrize("kind", ["s3", "google", "azure"])
def test_a_store_that_is_fit_is_as_it_was(request: pytest.FixtureRequest, kind: str) -> None:
    store: ObjectStore = request.getfixturevalue(f"{kind}_store")
    url = f"{store.scheme}://lake/probe"
    assert why_unfit(f"{url}/{{schema}}/{{table}}", store.options) is None
    assert folder_at(url, store.options).entries("_pgsluice_check/") == []


@pytest.mark.parametrize(
    ("header", "does"),
    [
        ("if-none-match", "overwrites an existing file in spite of If-None-Match"),
        ("if-match", "replaces a file that has changed in spite of If-Match"),
    ],
)
def test_a_store_that_ignores_conditions_is_refused(
    s3_store: ObjectStore, proxy: StoreProxy, header: str, does: str
) -> None:
    proxy.left_out = frozenset({header})
    why = why_unfit("s3://lake/probe/{table}", s3_store.at(proxy.endpoint))
    assert (why or "").startswith(f"the store {proxy.endpoint} {does}, so writers")
    assert folder_at("s3://lake/probe", s3_store.options).entries() == []


def test_a_directory_bucket_is_refused_without_being_asked() -> None:
    why = why_unfit("s3://lake--euc1-az1--x-s3/{table}", {})
    assert (why or "").startswith("a directory bucket of S3 Express lists names in no order")


def test_a_bucket_that_is_not_there_is_said_in_one_line(s3_store: ObjectStore) -> None:
    why = why_unfit("s3://nowhere/lake/{table}", s3_store.options)
    assert why == (
        "s3://nowhere does not exist (NoSuchBucket: The specified bucket does not exist): "
        "make it, or correct the path; pgsluice makes none"
    )
    assert SECRET not in why


def test_a_disk_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_unfit(f"{tmp_path}/lake/{{table}}", {}) is None
    assert why_unfit(f"file://{tmp_path}/lake/{{table}}", {}) is None

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert "refuses hard links" in (why_unfit(f"{tmp_path}/lake/{{table}}", {}) or "")
    assert not [*tmp_path.iterdir()]
