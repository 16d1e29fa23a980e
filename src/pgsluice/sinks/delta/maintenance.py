"""Keeping a table's folder small: compaction, vacuum, the log.

Merges copy files: 60 merges of 50 keys made 2.7 GB of a table of 43 MB. So after enough
commits the files that no kept version needs are deleted, small files are joined first, and
the log's own clean-up is set by the table's properties (it runs when a checkpoint is written).

"Enough" is estimated without reading anything more: commits since the last maintenance, each as
large as the one just made. The version of the last maintenance is a transaction identifier, like
the position (:mod:`.commit_marker`), so any task can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

MAINTAINED = "pgsluice.maintained"

TARGET_FILE_BYTES = 16 * 2**20
"""Small enough that a merge into one end of a table's keys rewrites little of it."""

MANY_COMMITS = 50
LITTLE_BYTES = 16 * 2**20
MANY_SMALL_FILES = 8
ORPHANS_EVERY = 1000
ORPHAN_AGE = timedelta(hours=24)


def table_properties(cut_retention_s: float) -> dict[str, str | None]:
    """Properties of a new table. Whoever changes them later is not overruled.

    The log serves readers of recent versions, it is no archive: at two commits a second a
    month of it would be five million files.
    """
    hours = max(1, round(2 * cut_retention_s / 3600 + 0.5))
    return {
        "delta.logRetentionDuration": f"interval {hours} hours",
        "delta.deletedFileRetentionDuration": f"interval {hours} hours",
        "delta.targetFileSize": str(TARGET_FILE_BYTES),
    }


def live_files(handle: DeltaTable) -> dict[str, int]:
    """Bytes of each live file by its path."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def is_due(handle: DeltaTable, bytes_written: int) -> bool:
    """Whether enough has been written since the last maintenance.

    Args:
        bytes_written: by the newest commit.
    """
    commits = handle.version() - (handle.transaction_version(MAINTAINED) or 0)
    if commits >= MANY_COMMITS:
        return True
    written = commits * bytes_written
    return written >= LITTLE_BYTES and written >= 2 * sum(live_files(handle).values())


def maintain(
    handle: DeltaTable, keep_versions: Iterable[int], storage_options: dict[str, str] | None
) -> None:
    """Join small files, and delete what neither the newest nor a kept version needs.

    The version before the newest stays too: a reader may have just opened it. If others commit
    meanwhile, this is left for the next time.
    """
    newest = handle.version()
    wanted = {*keep_versions, newest - 1} - {newest}
    keep = {one for one in wanted if _is_there(handle, one, storage_options)} | {newest}
    last = handle.transaction_version(MAINTAINED) or 0
    try:
        small = sum(size < TARGET_FILE_BYTES // 2 for size in live_files(handle).values())
        if small >= MANY_SMALL_FILES:
            handle.optimize.compact(
                target_size=TARGET_FILE_BYTES,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        _vacuum(handle, keep, timedelta(0), full=False)
        if handle.version() // ORPHANS_EVERY > last // ORPHANS_EVERY:
            _vacuum(handle, keep, ORPHAN_AGE, full=True)
    except CommitFailedError:
        return


def _is_there(handle: DeltaTable, version: int, storage_options: dict[str, str] | None) -> bool:
    """Whether a version can still be read: its log may be gone, and vacuum would refuse."""
    if not 0 <= version <= handle.version():
        return False
    try:
        DeltaTable(handle.table_uri, version=version, storage_options=storage_options)
    except DeltaError:
        return False
    return True


def _vacuum(handle: DeltaTable, keep: set[int], age: timedelta, *, full: bool) -> None:
    """Delete files: those that the log says are removed, or, if ``full``, all unknown ones.

    A full one finds what crashed attempts left behind. It must spare young files: an attempt
    may be writing them right now.
    """
    # Vacuum makes two commits, one before and one after it deletes.
    done = handle.version() + 2
    handle.vacuum(
        retention_hours=int(age.total_seconds() // 3600),
        dry_run=False,
        enforce_retention_duration=False,
        full=full,
        keep_versions=sorted(keep),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(MAINTAINED, done)], max_commit_retries=0
        ),
    )
