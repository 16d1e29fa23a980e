"""Tests whether tables can be written safely to a place, by writing there.

Two writers cannot overwrite each other only if the place supports the safe creation of names: hard
links on a disk, conditional writes in a store. Some stores ignore the condition and report success.
So the test creates a name twice, and replaces it with an outdated tag.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from pgsluice.errors import PgsluiceError
from pgsluice.shown import one_line
from pgsluice.stores.addresses import address_of, why_no_address
from pgsluice.stores.contract import Changed, Folder, NameTaken, StoreError
from pgsluice.stores.local import WHY_NO_LINKS, refuses_links
from pgsluice.stores.places import folder_at, local_path
from pgsluice.system.threads import WorkThread

_LIMIT_S = 45.0
_SOON = {"timeout": "10s", "max_retries": "2", "retry_timeout": "20s"}
_EXPRESS = "--x-s3"
_FOLDER = "_pgsluice_check"


def why_unfit(template: str, options: Mapping[str, str]) -> str | None:
    """Why tables cannot be written safely to a place, as one sentence; None: they can.

    Args:
        template: a folder or URL with ``{table}`` and maybe ``{schema}``; its fixed part is tested,
            and cleaned up afterwards.
        options: options of an object store, under deltalake's names.
    """
    fixed = template.partition("{")[0].rpartition("/")[0]
    if "://" in template and "://" not in fixed:
        return None  # each schema or table has a bucket of its own
    path = local_path(fixed or "/")
    if path is not None:
        return WHY_NO_LINKS if refuses_links(Path(path)) else None
    if why := why_no_address(fixed):
        return f"it {why}"
    if address_of(fixed).bucket.endswith(_EXPRESS):
        return (
            "a directory bucket of S3 Express lists names in no order and not from a name on, so "
            "new versions of a table cannot be found there; a general purpose bucket can have it"
        )
    thread = WorkThread("pgsluice probe", partial(_probe, fixed, {**_SOON, **options}))
    thread.start()
    thread.join(_LIMIT_S)
    if thread.is_alive():
        return "it did not answer in time"
    if isinstance(thread.error, PgsluiceError):
        details = f" ({'; '.join(thread.error.details)})" if thread.error.details else ""
        hint = f": {thread.error.hint}" if thread.error.hint else ""
        return one_line(f"{thread.error.what}{details}{hint}")
    return None if thread.error is None else one_line(str(thread.error))


def _probe(fixed: str, options: Mapping[str, str]) -> None:
    folder = folder_at(f"{fixed}/{_FOLDER}/{uuid.uuid4()}", options)
    store = options.get("aws_endpoint_url") or options.get("endpoint_url") or address_of(fixed).root
    names = ["1", "2", "3"]
    try:
        _refuse_a_store_that_ignores_conditions(folder, store)
        for name in names[1:]:
            folder.create(name, b"pgsluice")
        if [file.name for file in folder.entries(after=names[0])] != names[1:]:
            raise StoreError(f"{store} does not list the files that were written before")
    except BaseException:
        with suppress(StoreError):
            folder.delete(*names)
        raise
    folder.delete(*names)
    if folder.entries():
        raise StoreError(f"{store} lists files that were deleted before")


def _refuse_a_store_that_ignores_conditions(folder: Folder, store: str) -> None:
    tag = folder.create("1", b"of the first writer")
    with suppress(NameTaken):
        folder.create("1", b"of the second writer")
        raise _ignoring(store, "overwrites an existing file in spite of If-None-Match")
    folder.replace("1", b"of the first writer, again", tag)
    with suppress(Changed):
        folder.replace("1", b"of the second writer, too late", tag)
        raise _ignoring(store, "replaces a file that has changed in spite of If-Match")


def _ignoring(store: str, violation: str) -> StoreError:
    return StoreError(
        f"the store {store} {violation}, so writers would overwrite each other's commits",
        hint="use another object store, or a newer version of this one",
    )
