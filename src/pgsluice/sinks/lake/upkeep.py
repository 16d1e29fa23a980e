"""Decides which files upkeep rewrites, and which it deletes.

Many small files of about the same size are joined. A file with more than a fifth of its rows
deleted is rewritten without them. At most about TARGET_FILE_BYTES are rewritten at a time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.data_files import dead_rows, live_batches, whole_groups
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.keys.index import KEYS_FOLDER, KeyIndex, data_file_of
from pgsluice.sinks.lake.snapshot import (
    CLOSED,
    DataFile,
    NewFile,
    Removed,
    Snapshot,
    by_prefix,
    prefix_of,
)
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.stores.contract import Folder

FILES_OF_A_SIZE = 6
"""How many small files of about the same size are joined. Readers pay for each file with a
vector."""
SHARE_OF_DEAD = 0.2
"""The share of deleted rows from which a file is rewritten."""
_SMALLEST_BYTES = 32 * 1024


def rewritten(snapshot: Snapshot, files: Sequence[DataFile], index: KeyIndex | None = None) -> Edit:
    """Write the live rows of files to new files; what exchanges them."""
    names = [file.name for file in files]
    return Edit(names, new=write_live_rows(snapshot, files, index), changes_data=False)


def write_live_rows(
    snapshot: Snapshot, files: Iterable[DataFile], index: KeyIndex | None = None
) -> list[NewFile]:
    """Write the live rows of files to new files; closed versions of a history stay apart."""
    written: list[NewFile] = []
    for prefix, of_kind in by_prefix(files).items():
        rows = live_rows(snapshot, of_kind)
        keys = None if prefix == CLOSED else index
        written += staging.write_files(
            snapshot.folder, snapshot.schema, rows, keys, prefix=prefix, layout=snapshot.layout
        )
    return written


def live_rows(snapshot: Snapshot, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    """The rows of data files without the deleted ones, file by file, in batches."""
    with_dead = ((file, dead_rows(snapshot.folder, file)) for file in files)
    return whole_groups(live_batches(snapshot.folder, with_dead, snapshot.schema))


def files_to_rewrite(snapshot: Snapshot) -> list[DataFile]:
    """Small files of one partition and of the same size class, if there are many; else files with
    many deleted rows."""
    by_size: dict[tuple[int, str, str], list[DataFile]] = {}
    for file in snapshot.files.values():
        if file.size < TARGET_FILE_BYTES // 2:
            key = (_size_class(file), prefix_of(file), str([*file.partition.items()]))
            by_size.setdefault(key, []).append(file)
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
    """A file's size class: 0 for the smallest files; each class has files up to four times as large
    as the one before."""
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


def unneeded(
    snapshot: Snapshot, keep: set[int], history_retention_s: float
) -> tuple[list[str], dict[str, Removed]]:
    """The removed files that can be deleted, because neither the newest version, nor the one
    before, nor a retained one needs them; and the other removed files. A reader may have just
    opened the version before.

    Args:
        keep: versions whose files are retained, regardless of their age.
        history_retention_s: also retain files that were replaced within this time, in seconds.
    """
    live = snapshot.live_names()
    kept_versions = {*keep, snapshot.version - 1}
    oldest_ms = (time.time() - history_retention_s) * 1000
    gone, remaining = [], {}
    for name, file in snapshot.removed.items():
        is_needed = any(file.since <= version < file.until for version in kept_versions)
        if name in live:
            continue
        if is_needed or file.time_ms > oldest_ms:
            remaining[name] = file
        else:
            gone.append(name)
    return gone, remaining


def sidecars_of(folder: Folder, files: Collection[str]) -> list[str]:
    """The sidecars in an object store of data files that are about to be deleted."""
    if folder.path is not None or not files:
        return []
    found = (file.name for file in folder.entries(KEYS_FOLDER))
    return [name for name in found if data_file_of(name) in files]


def leftovers(
    folder: Folder, known: Collection[str], inner: tuple[str, ...], written_before: float
) -> list[str]:
    """The files of attempts that were killed before their commit.

    Args:
        known: names of the files that versions need.
        inner: the folders inside it that have other files of versions, with ``/`` at their ends.
        written_before: younger files are none: an attempt that still runs may have written them.
            In seconds since 1970.
    """

    def is_ours(name: str) -> bool:
        """Whether only versions of this table need it. Data files are in the table's folder, or in
        folders of partitions; any other folder may be another table's."""
        *folders, file = name.split("/")
        is_data = file.endswith(".parquet") and all("=" in folder for folder in folders)
        return name.startswith(inner) or is_data

    old = (file.name for file in folder.tree() if file.written_at < written_before)
    return [
        name
        for name in old
        if (is_ours(name) and name not in known)
        or (name.startswith(KEYS_FOLDER) and data_file_of(name) not in known)
    ]
