"""Keeps a table's folder and its log small, in steps that no batch waits for long.

Sixty merges of 50 keys turned 43 MB into 2.7 GB. So after each batch some files are rewritten, if
that is due (:mod:`pgsluice.sinks.lake.upkeep`). After some commits, a checkpoint is written, with
which deltalake cleans up the log by the table's properties; after more, or many bytes, files that
no kept version needs are deleted, among them those of vectors. No vacuum does the latter:
deltalake's and Spark's skip the folder ``_dv``. Sidecars in an object store go with their data
files.

"Many bytes" is estimated without reading more: the commits since the last time times the bytes of
the newest commit. The version of the last time is a transaction identifier, like the position
(:mod:`.log.commit_marker`), so every task can read it.

Files that a killed process left are no part of this: :func:`delete_leftovers` searches for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from pgsluice.sinks.contract import Overtaken
from pgsluice.sinks.delta.log import commit_marker
from pgsluice.sinks.delta.log.commit import actions_of, commit
from pgsluice.sinks.delta.log.deletion_vectors import FOLDER
from pgsluice.sinks.delta.log.features import definition_without_vectors, was_merged_on_read
from pgsluice.sinks.delta.log.reading import remember
from pgsluice.sinks.delta.log.snapshot import DeltaSnapshot
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.keys.index import KeyIndex
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.sinks.lake.upkeep import files_to_rewrite, leftovers, rewritten, sidecars_of, unneeded
from pgsluice.stores.local import TEMPORARY_FOLDER

if TYPE_CHECKING:
    from pgsluice.sinks.delta.sink import DeltaSink

MAINTAINED = "pgsluice.maintained"
_RETENTIONS = {"delta.logRetentionDuration": 720, "delta.deletedFileRetentionDuration": 168}
"""Delta's properties of a retention, with the default in hours."""
_INTERVAL = re.compile(r"interval (\d+) hours")

MANY_COMMITS = 50
LITTLE_BYTES = 16 * 2**20

CHECKPOINT_EVERY = 20
"""The number of versions between two checkpoints: readers read all commits after a checkpoint, one
file each."""


def log_hours(sink: DeltaSink) -> int:
    """How many hours the log has to reach back, for readers of consistent checkpoints and of other
    versions; rounded up, because Delta's retention is in hours."""
    return max(
        1, *(math.ceil(s / 3600) for s in (2 * sink.cut_retention_s, sink.history_retention_s))
    )


def table_properties(hours: int) -> dict[str, str | None]:
    """Properties of a new table whose log reaches back so many hours; a user may change them later.
    The log serves readers of recent versions and is no archive: at two commits per second, a month
    of it would have five million files."""
    return {
        **dict.fromkeys(_RETENTIONS, f"interval {hours} hours"),
        "delta.targetFileSize": str(TARGET_FILE_BYTES),
    }


def _keep_log(handle: DeltaTable, hours: int) -> None:
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


def is_due(snapshot: DeltaSnapshot, bytes_written: int) -> bool:
    """Whether enough has been written since the last maintenance, if each commit since then wrote
    as many bytes as the newest one."""
    commits = _commits_since(snapshot)
    written = commits * bytes_written
    live = sum(file.size for file in snapshot.files.values())
    return commits >= MANY_COMMITS or (written >= LITTLE_BYTES and written >= 2 * live)


def _commits_since(snapshot: DeltaSnapshot) -> int:
    return snapshot.version - (snapshot.transaction_version(MAINTAINED) or 0)


def keep_up(
    snapshot: DeltaSnapshot,
    keep_versions: Iterable[int],
    sink: DeltaSink,
    *,
    bytes_written: int,
    keeps_vectors: bool,
    index: KeyIndex | None,
) -> DeltaSnapshot:
    """Do what is due after a batch; nothing, if another commit comes first. Returns the newest
    version afterwards.

    Args:
        keep_versions: whose files stay, however old they are.
        bytes_written: bytes of the batch's files.
        keeps_vectors: otherwise the deletion vectors of earlier merges are disabled.
        index: gets the keys of files that are rewritten.
    """
    before = snapshot.version - 1
    with suppress(Overtaken):
        if not keeps_vectors and was_merged_on_read(snapshot.configuration):
            files = [file for file in snapshot.files.values() if file.vector is not None]
            without = definition_without_vectors(snapshot)
            edit = rewritten(snapshot, files)
            snapshot = commit_upkeep(snapshot, "REORG", edit, definition=without)
        if chosen := files_to_rewrite(snapshot):
            snapshot = commit_upkeep(snapshot, "OPTIMIZE", rewritten(snapshot, chosen, index))
        is_at_checkpoint = snapshot.version // CHECKPOINT_EVERY > before // CHECKPOINT_EVERY
        if is_at_checkpoint or _commits_since(snapshot) >= MANY_COMMITS:
            write_checkpoint(snapshot, sink)
        if is_due(snapshot, bytes_written):
            snapshot = delete_files(snapshot, keep_versions, sink.history_retention_s)
    return snapshot


def delete_leftovers(snapshot: DeltaSnapshot, written_before: float) -> None:
    """Delete the files that no version names, and that were written before a time in seconds since
    1970."""
    if snapshot.version < 0:
        return
    known = snapshot.live_names() | snapshot.removed.keys()
    inner = (f"{FOLDER}/", f"{TEMPORARY_FOLDER}/")
    snapshot.folder.delete(*leftovers(snapshot.folder, known, inner, written_before))


def commit_upkeep(
    snapshot: DeltaSnapshot,
    operation: str,
    edit: Edit,
    *,
    definition: Sequence[dict[str, Any]] = (),
    transactions: Mapping[str, int] = MappingProxyType({}),
) -> DeltaSnapshot:
    """Commit an edit that maintenance makes, and actions that change the table's definition.

    If our newest commit is the newest one of the table, this is another one of ours. Otherwise
    commits of others in between are still checked.

    Raises:
        Overtaken: another commit came first.
    """
    actions, _ = actions_of(snapshot, edit)
    is_ours = snapshot.transaction_version(commit_marker.VERSION) == snapshot.version
    ours = {commit_marker.VERSION: snapshot.version + 1} if is_ours else {}
    marks = {**transactions, **ours}
    return commit(snapshot, operation, [*definition, *actions], transactions=marks)


def write_checkpoint(snapshot: DeltaSnapshot, sink: DeltaSink) -> None:
    """Write a checkpoint, and delete log files that are older than needed."""
    with suppress(DeltaError):  # others commit or clean up; the next time will do
        table = DeltaTable(snapshot.folder.uri, storage_options=snapshot.folder.storage_options())
        _keep_log(table, log_hours(sink))
        table.create_checkpoint()
        # The commits before it are deleted next.
        written = (f"{table.version():020}.checkpoint.parquet", "_last_checkpoint")
        snapshot.folder.settle(f"_delta_log/{name}" for name in written)
        table.cleanup_metadata()


def delete_files(
    snapshot: DeltaSnapshot, keep_versions: Iterable[int], history_retention_s: float
) -> DeltaSnapshot:
    """Delete the files that no version in use needs (:func:`.lake.upkeep.unneeded`).

    Raises:
        Overtaken: another commit came first.
    """
    folder = snapshot.folder
    gone, remaining = unneeded(snapshot, {*keep_versions}, history_retention_s)
    folder.delete(*gone, *sidecars_of(folder, gone))
    done = {MAINTAINED: snapshot.version + 1}
    made = commit_upkeep(snapshot, "VACUUM END", Edit(), transactions=done)
    made = replace(made, removed=remaining)
    remember(made)
    return made
