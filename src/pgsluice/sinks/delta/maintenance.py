"""Keeps a table's folder small: compaction, vacuum, clean-up of the log.

A MERGE rewrites whole files: 60 merges of 50 keys turned 43 MB into 2.7 GB. So after enough
commits, small files are joined, and files that no retained version needs are deleted. deltalake
itself cleans up the log when it writes a checkpoint, by the table's properties.

"Enough" is estimated without reading more: the commits since the last maintenance times the
bytes of the newest commit. The version of the last maintenance is a transaction identifier,
like the position (:mod:`.log.commit_marker`), so every task can read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from pgsluice.sinks.delta.log.columns import existing_schema
from pgsluice.sinks.delta.log.durability import settle_through
from pgsluice.sinks.delta.ruled.statistics import writer_properties
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.stores.contract import Folder

MAINTAINED = "pgsluice.maintained"
_RETENTIONS = {"delta.logRetentionDuration": 720, "delta.deletedFileRetentionDuration": 168}
"""Delta's properties of a retention, with the default in hours."""
_INTERVAL = re.compile(r"interval (\d+) hours")

MANY_COMMITS = 50
LITTLE_BYTES = 16 * 2**20
MANY_SMALL_FILES = 8


def whole_hours(seconds: float) -> int:
    """Seconds as hours, rounded up, because Delta's retention is in hours."""
    return math.ceil(seconds / 3600)


def log_hours(cut_retention_s: float, history_retention_s: float) -> int:
    """How many hours the log has to reach back, for readers of consistent checkpoints and of other
    versions."""
    return max(1, whole_hours(2 * cut_retention_s), whole_hours(history_retention_s))


def table_properties(hours: int) -> dict[str, str | None]:
    """Properties of a new table; a user may change them later.

    The log serves readers of recent versions and is no archive: at two commits per second, a
    month of it would have five million files.

    Args:
        hours: how long the log reaches back.
    """
    return {
        **dict.fromkeys(_RETENTIONS, f"interval {hours} hours"),
        "delta.targetFileSize": str(TARGET_FILE_BYTES),
    }


def keep_log(handle: DeltaTable, hours: int) -> None:
    """Extend the retentions of an existing table to the configured one: of the log, and of its
    entries for removed files, without which these files look like those of killed attempts."""
    wanted = {}
    for name, default in _RETENTIONS.items():
        configured = handle.metadata().configuration.get(name) or f"interval {default} hours"
        interval = _INTERVAL.fullmatch(configured)
        if interval is not None and int(interval[1]) < hours:  # a longer time is the user's own
            wanted[name] = f"interval {hours} hours"
    if wanted:
        with suppress(CommitFailedError):  # somebody commits: the next maintenance does it
            handle.alter.set_table_properties(
                wanted, commit_properties=CommitProperties(max_commit_retries=0)
            )


def live_files(handle: DeltaTable) -> dict[str, int]:
    """The size in bytes of each live file, by path."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def is_due(commits: int, bytes_written: int, sizes: Iterable[int]) -> bool:
    """Whether enough has been written since the last maintenance.

    Args:
        commits: the number of commits since then.
        bytes_written: the size of the newest commit's files in bytes.
        sizes: the sizes of the live files in bytes.
    """
    written = commits * bytes_written
    return commits >= MANY_COMMITS or (written >= LITTLE_BYTES and written >= 2 * sum(sizes))


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
        folder: the table's folder.
        keep_versions: versions whose files are retained, regardless of their age.
        history_hours: also retain files that were replaced within so many hours.
    """
    newest = handle.version()
    wanted = {*keep_versions, newest - 1} - {newest}
    readable = {version for version in wanted if _is_readable(handle, folder, version)}
    keep = readable | {newest}
    try:
        small = sum(size < TARGET_FILE_BYTES // 2 for size in live_files(handle).values())
        if small >= MANY_SMALL_FILES:
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
