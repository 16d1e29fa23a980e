"""Joins small files of a table with rules of others, and deletes unneeded ones, by deltalake."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from pgsluice.sinks.delta.log.columns import existing_schema
from pgsluice.sinks.delta.log.durability import settle_through
from pgsluice.sinks.delta.ruled.merge import writer_properties
from pgsluice.sinks.delta.upkeep import MAINTAINED
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.stores.contract import Folder

MANY_SMALL_FILES = 8


def maintain(
    handle: DeltaTable,
    folder: Folder,
    keep_versions: Iterable[int],
    *,
    history_hours: int = 0,
) -> None:
    """Join small files, and delete files that neither the newest nor a retained version needs.

    The version before the newest is also retained, because a reader may have just opened it. If
    others commit meanwhile, nothing is done until the next time.

    Args:
        handle: the table.
        keep_versions: versions whose files are retained, regardless of their age.
        history_hours: also retain files that were replaced within so many hours.
    """
    newest = handle.version()
    wanted = {*keep_versions, newest - 1} - {newest}
    readable = {version for version in wanted if _is_readable(handle, folder, version)}
    keep = readable | {newest}
    try:
        sizes = pa.table(handle.get_add_actions(flatten=True))["size_bytes"].to_pylist()
        if sum(size < TARGET_FILE_BYTES // 2 for size in sizes) >= MANY_SMALL_FILES:
            handle.optimize.compact(
                target_size=TARGET_FILE_BYTES,
                writer_properties=writer_properties(existing_schema(handle)),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            # The files that it replaced are deleted next.
            settle_through(folder, handle.version())
        _vacuum(handle, keep, history_hours)
    except CommitFailedError:
        return


def _is_readable(handle: DeltaTable, folder: Folder, version: int) -> bool:
    """Whether a version can still be read; vacuum refuses to retain one whose log is gone."""
    if not 0 <= version <= handle.version():
        return False
    try:
        options = folder.storage_options() or None
        DeltaTable(folder.uri, version=version, storage_options=options)
    except DeltaError:
        return False
    return True


def _vacuum(handle: DeltaTable, keep: set[int], hours: int) -> None:
    """Delete the files that the log lists as removed before so many hours."""
    # Vacuum makes two commits, one before and one after it deletes.
    done = handle.version() + 2
    handle.vacuum(
        retention_hours=hours,
        dry_run=False,
        enforce_retention_duration=False,
        keep_versions=sorted(keep),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(MAINTAINED, done)], max_commit_retries=0
        ),
    )
