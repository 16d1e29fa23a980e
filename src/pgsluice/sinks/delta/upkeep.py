"""Upkeep of a table on a disk, in steps that no batch waits for long.

After each batch: many small files of about one size are joined, and a file of which more than a
fifth is dead is written again without its dead rows; at most about TARGET_FILE_BYTES at a time.
After some commits, a checkpoint is written; after more, or many bytes, files that no kept version
needs are deleted, among them those of vectors. No vacuum does the latter: deltalake's and Spark's
skip the folder ``_dv``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgsluice.sinks.contract import Overtaken
from pgsluice.sinks.delta import commit_marker, maintenance
from pgsluice.sinks.delta.commit import added, commit, removed
from pgsluice.sinks.delta.deletion_vectors import FOLDER
from pgsluice.sinks.delta.features import definition_without_vectors
from pgsluice.sinks.delta.log import remember
from pgsluice.sinks.delta.maintenance import MAINTAINED
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.attempt import ORPHAN_AGE
from pgsluice.sinks.lake.data_files import dead_rows, live_batches, whole_groups
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.stores.contract import Folder
from pgsluice.stores.local import TEMPORARY_FOLDER

FILES_OF_A_SIZE = 6
"""So many small files of about one size are joined. Readers pay for each file that has a vector."""
CHECKPOINT_EVERY = 20
"""Versions from one checkpoint to the next: readers read all commits after it, one file each."""
SHARE_OF_DEAD = 0.2
"""A file with more dead rows is written again."""
_SMALLEST_BYTES = 32 * 1024


def keep_up(
    snapshot: Snapshot,
    keep_versions: Iterable[int],
    *,
    bytes_written: int,
    cut_retention_s: float,
    history_retention_s: float,
) -> Snapshot:
    """Do what is due after a batch; nothing, if another commit comes first.

    Args:
        snapshot: the newest version.
        bytes_written: bytes of the batch's files.
        keep_versions: whose files stay, however old they are.
        history_retention_s: files that were replaced later than this stay, too.

    Returns:
        the newest version afterwards.
    """
    before = snapshot.version - 1
    hours = maintenance.log_hours(cut_retention_s, history_retention_s)
    with suppress(Overtaken):
        if chosen := _files_to_rewrite(snapshot):
            snapshot = rewrite(snapshot, chosen)
        commits = snapshot.version - (snapshot.transaction_version(MAINTAINED) or 0)
        sizes = (file.size for file in snapshot.files.values())
        is_due = maintenance.is_due(commits, bytes_written, sizes)
        is_at_checkpoint = snapshot.version // CHECKPOINT_EVERY > before // CHECKPOINT_EVERY
        if is_at_checkpoint or commits >= maintenance.MANY_COMMITS:
            _write_checkpoint(snapshot, hours)
        if is_due:
            snapshot = _delete_files(snapshot, {*keep_versions}, history_retention_s)
    return snapshot


def rewrite(snapshot: Snapshot, files: Sequence[DataFile]) -> Snapshot:
    """Write the live rows of files to new files, in one commit that changes no data.

    Raises:
        Overtaken: another commit came first.
    """
    actions = rewritten(snapshot, files)
    return commit(snapshot, "OPTIMIZE", actions, transactions=_still_ours(snapshot))


def drop_vectors(snapshot: Snapshot) -> Snapshot:
    """Write all files with dead rows anew; the table has no deletion vectors from then on.

    Raises:
        Overtaken: another commit came first.
    """
    files = [file for file in snapshot.files.values() if file.vector is not None]
    actions = [*definition_without_vectors(snapshot), *rewritten(snapshot, files)]
    return commit(snapshot, "REORG", actions, transactions=_still_ours(snapshot))


def rewritten(snapshot: Snapshot, files: Sequence[DataFile]) -> list[dict[str, Any]]:
    """Write the live rows of files to new files; the actions that exchange them."""
    written = write_live_rows(snapshot, files)
    return [
        *(removed(file, changes_data=False) for file in files),
        *(added(file["path"], file["size"], file["stats"], changes_data=False) for file in written),
    ]


def write_live_rows(snapshot: Snapshot, files: Sequence[DataFile]) -> list[dict[str, Any]]:
    """Write the live rows of files to new files, as :func:`.staging.write_files` returns them."""
    rows = live_rows(snapshot, files)
    return staging.write_files(snapshot.folder, snapshot.schema, rows)


def live_rows(snapshot: Snapshot, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    """The live rows of files, those of one after those of another."""
    with_dead = ((file, dead_rows(snapshot.folder, file)) for file in files)
    return whole_groups(live_batches(snapshot.folder, with_dead, snapshot.schema))


def _files_to_rewrite(snapshot: Snapshot) -> list[DataFile]:
    """Small files of one size, if there are many; else files with many dead rows."""
    by_size: dict[int, list[DataFile]] = {}
    for file in snapshot.files.values():
        if file.size < TARGET_FILE_BYTES // 2:
            by_size.setdefault(_size_class(file), []).append(file)
    crowded = [key for key, files in by_size.items() if len(files) >= FILES_OF_A_SIZE]
    if crowded:
        return _up_to_target(by_size[min(crowded)])
    dead = [
        file
        for file in snapshot.files.values()
        if file.vector is not None and file.share_of_dead(snapshot.folder) > SHARE_OF_DEAD
    ]
    return _up_to_target(sorted(dead, key=lambda file: -file.share_of_dead(snapshot.folder)))


def _size_class(file: DataFile) -> int:
    """0 for the smallest files; each class has files of up to four times the size of the last."""
    return max(file.size // _SMALLEST_BYTES, 1).bit_length() // 2


def _up_to_target(files: Iterable[DataFile]) -> list[DataFile]:
    """The first files, until they have TARGET_FILE_BYTES together."""
    chosen: list[DataFile] = []
    size = 0
    for file in files:
        if chosen and size + file.size > TARGET_FILE_BYTES:
            break
        chosen.append(file)
        size += file.size
    return chosen


def _still_ours(snapshot: Snapshot) -> dict[str, int]:
    """The transaction identifier that names our newest commit, if that is the newest of all.

    Otherwise it stays as it is, so that what others committed in between is still looked at.
    """
    if snapshot.transaction_version(commit_marker.VERSION) != snapshot.version:
        return {}
    return {commit_marker.VERSION: snapshot.version + 1}


def _write_checkpoint(snapshot: Snapshot, log_hours: int) -> None:
    """Write a checkpoint and delete what is older than the log has to be."""
    with suppress(DeltaError):  # others commit or clean up; the next time will do
        table = DeltaTable(snapshot.folder.uri, storage_options=snapshot.folder.storage_options())
        maintenance.keep_log(table, log_hours)
        table.create_checkpoint()
        # The commits before it are deleted next.
        written = (f"{table.version():020}.checkpoint.parquet", "_last_checkpoint")
        snapshot.folder.settle(f"_delta_log/{name}" for name in written)
        table.cleanup_metadata()


def _delete_files(snapshot: Snapshot, keep: set[int], history_retention_s: float) -> Snapshot:
    """Delete the files that neither the newest, nor the version before, nor a kept one needs.

    A reader may have just opened the version before.
    """
    folder = snapshot.folder
    live = _live_names(snapshot)
    kept_versions = {*keep, snapshot.version - 1}
    oldest_ms = (time.time() - history_retention_s) * 1000
    remaining, gone = {}, []
    for name, file in snapshot.removed.items():
        is_needed = any(file.since <= version < file.until for version in kept_versions)
        if name in live:
            continue
        if is_needed or file.time_ms > oldest_ms:
            remaining[name] = file
        else:
            gone.append(name)
    folder.delete(*gone)
    last = snapshot.transaction_version(MAINTAINED) or 0
    if snapshot.version // maintenance.ORPHANS_EVERY > last // maintenance.ORPHANS_EVERY:
        _delete_orphans(folder, live | remaining.keys())
    done = {MAINTAINED: snapshot.version + 1, **_still_ours(snapshot)}
    made = replace(commit(snapshot, "VACUUM END", [], transactions=done), removed=remaining)
    remember(made)
    return made


def _delete_orphans(folder: Folder, known: set[str]) -> None:
    """Delete the files of attempts that were killed before their commit.

    Young ones stay: a running attempt may have written them.
    """
    oldest = time.time() - ORPHAN_AGE.total_seconds()
    data = [file for file in folder.entries() if file.name.endswith(".parquet")]
    others = [*folder.entries(f"{FOLDER}/"), *folder.entries(f"{TEMPORARY_FOLDER}/")]
    folder.delete(
        *(f.name for f in (*data, *others) if f.name not in known and f.written_at < oldest)
    )


def _live_names(snapshot: Snapshot) -> set[str]:
    """The files of data and of vectors that the version needs."""
    vectors = (file.vector for file in snapshot.files.values() if file.vector is not None)
    named = (vector.name(snapshot.folder) for vector in vectors)
    return {*snapshot.files, *(name for name in named if name is not None)}
