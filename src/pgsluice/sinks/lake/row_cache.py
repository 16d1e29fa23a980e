"""Reads single rows of data files from row groups that are kept decoded on a disk of this machine.

In a data file, a row is read with its whole row group, which has to be decompressed and decoded: a
batch of 500 random keys reads nearly all bytes of a table with a million rows. So each row group
from which a batch takes some rows is kept as an Arrow file, which is mapped: later batches read
only the pages of memory that have their rows.

A data file never changes, so neither do its kept row groups. They may be lost at any time. Their
size on the disk is limited: beyond the limit, rows are read from data files. Which rows are dead,
and which files are live, only the log says.

Its figure: a batch of 500 random keys into a history of a million rows costs at most twice the CPU
of one into current rows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgsluice.columnar.changes import Int64s
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake.data_files import group_batches, joined, pieces_of_group, starts_of_groups
from pgsluice.sinks.lake.layout.layout import with_partition
from pgsluice.sinks.lake.mapped_files import MappedFile, OpenFiles, writing
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.small_files import TEMPORARY
from pgsluice.stores.contract import Folder

FORMAT = "1"
"""The format number of kept row groups; it is part of their subject."""
CACHE_BYTES = 2**30
"""The maximum size of all kept row groups in a cache folder."""
SHARE_OF_DISK = 8
"""They also take at most one part in so many of the disk's free space."""
SMALLEST_BYTES = 64 * 1024
"""Row groups that are smaller, in bytes before compression, are as cheap to decode: 0.3 ms."""
LARGEST_BYTES = 16 * 2**20
"""Row groups that are larger when decoded, in bytes, are not kept: they are in memory for that."""
FEW_ROWS = 0.2
"""The share of a row group's rows from which it is not kept: a batch that takes more replaces
it."""
UNUSED_S = 3600
"""Kept row groups that nobody has used for as many seconds make room for others."""
_TOUCHED_EVERY_S = 300
_MEASURED_EVERY_S = 10
_FILES_KNOWN = 4096
_SUFFIX = ".rows"


class RowCache:
    """The kept row groups of one table, in a folder below ``root``, that of all tables. No two data
    files have the same name, even if another table is at the same path later."""

    def __init__(self, root: Path, folder: Folder) -> None:
        self._root = root
        self._table = folder
        self._folder = root / _digest(f"{FORMAT}\n{folder.uri}")

    def rows_at(self, file: DataFile, rows: Int64s, schema: pa.Schema) -> Iterator[pa.Table]:
        """Some rows of a data file, from its kept row groups if it has some, as
        :func:`.data_files.rows_at`."""
        return joined(self._pieces(file, rows, schema))

    def forget(self, live: Iterable[str]) -> None:
        """Delete the kept row groups of data files that are not among the live ones."""
        kept = {_digest(name) for name in live}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.name.partition("-")[0] not in kept:
                OPENED.drop(path)
                path.unlink(missing_ok=True)

    def _pieces(self, file: DataFile, rows: Int64s, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            opened = cache(lambda: stack.enter_context(file.open(self._table)))
            groups = _groups_of(self._folder, file.name, opened)
            names = [name for name in schema.names if name in groups.names]
            bounds = np.searchsorted(rows, groups.starts)
            for number in np.flatnonzero(np.diff(bounds)).tolist():
                places = rows[bounds[number] : bounds[number + 1]] - groups.starts[number]
                group = None
                if groups.can_keep(number):
                    path, subject = groups.places[number]
                    if (kept := OPENED.get(path, subject)) is not None:
                        kept.touch(path)
                        group = kept.batch
                    elif groups.is_worth(number, len(places)) and ROOM.has(
                        self._root, int(groups.sizes[number])
                    ):
                        group = groups.decoded(opened(), number)
                        if group is not None:
                            self._keep(group, path, subject)
                if group is None:
                    yield from pieces_of_group(opened(), number, places, file.partition, schema)
                else:
                    columns = group if names == group.schema.names else group.select(names)
                    some = with_partition(columns.take(pa.array(places)), file.partition, schema)
                    yield with_all_columns(some, schema)

    def _keep(self, batch: pa.RecordBatch, path: Path, subject: str) -> None:
        """Keep a decoded row group, unless the disk is full or cannot be written."""
        with suppress(OSError):
            with (
                writing(path, subject, 0o600) as stream,
                pa.ipc.new_stream(stream, batch.schema) as writer,
            ):
                writer.write_batch(batch)
            ROOM.take(self._root, batch.nbytes)


class KeptGroup(MappedFile):
    """A row group of a data file that is kept decoded, mapped into memory; ``batch`` has its
    rows."""

    def __init__(self, content: pa.Buffer) -> None:
        super().__init__(content)
        self.batch = pa.ipc.open_stream(content).read_next_batch()
        self._touched: float | None = None

    def touch(self, path: Path) -> None:
        """Note on the disk that somebody uses the kept row group, so that it stays."""
        now = time.monotonic()
        if self._touched is None or now - self._touched > _TOUCHED_EVERY_S:
            self._touched = now
            with suppress(OSError):
                os.utime(path)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The row groups of a data file.

    Attributes:
        starts: the first row of each, and the number of all rows.
        sizes: the size of each in bytes before compression.
        names: the names of their columns.
        places: where each is kept, and its subject.
        refused: those that turned out to be too large to keep.
    """

    starts: Int64s
    sizes: Int64s
    names: frozenset[str]
    places: Sequence[tuple[Path, str]]
    has_views: bool
    refused: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, folder: Path, name: str, parquet: pq.ParquetFile) -> RowGroups:
        """The row groups of a data file, which are kept in the folder."""
        metadata = parquet.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return cls(
            starts_of_groups(parquet),
            np.array([group.total_byte_size for group in groups], np.int64),
            frozenset(parquet.schema_arrow.names),
            [
                (folder / f"{_digest(name)}-{number}{_SUFFIX}", f"{FORMAT}\n{name}\n{number}")
                for number in range(len(groups))
            ],
            any(_has_views(column.type) for column in parquet.schema_arrow),
        )

    def can_keep(self, number: int) -> bool:
        """Whether a row group can be kept. Views, which other writers write, cannot be taken by
        row number."""
        is_small = self.sizes[number] < SMALLEST_BYTES
        is_large = self.sizes[number] > LARGEST_BYTES or number in self.refused
        return not (is_small or is_large or self.has_views)

    def is_worth(self, number: int, count: int) -> bool:
        """Whether a row group is kept for a batch that reads ``count`` of its rows."""
        rows = self.starts[number + 1] - self.starts[number]
        return bool(count <= FEW_ROWS * rows)

    def decoded(self, parquet: pq.ParquetFile, number: int) -> pa.RecordBatch | None:
        """All columns of a row group; None: they are too large to keep."""
        batches, size = [], 0
        for batch in group_batches(parquet, number, parquet.schema_arrow.names):
            batches.append(batch)
            size += batch.nbytes
            if size > LARGEST_BYTES:
                self.refused.add(number)
                return None
        [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return whole


def _groups_of(folder: Path, name: str, opened: Callable[[], pq.ParquetFile]) -> RowGroups:
    """The row groups of a data file, which is opened only once in this process; they are kept in
    the folder."""
    if (groups := KNOWN.get((folder, name))) is None:
        groups = KNOWN[folder, name] = RowGroups.of(folder, name, opened())
        while len(KNOWN) > _FILES_KNOWN:
            KNOWN.popitem(last=False)
    return groups


class Room:
    """How many bytes of a disk the kept row groups take, and may take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[Path, tuple[float, int]] = {}

    def has(self, root: Path, size: int) -> bool:
        """Whether so many bytes more may be kept in a folder; False: or the disk cannot be read."""
        with self._lock, suppress(OSError):
            root.mkdir(0o700, parents=True, exist_ok=True)  # somebody may have deleted it
            at, used = self._measured.get(root, (None, 0))
            if at is None or time.monotonic() - at > _MEASURED_EVERY_S:
                used = _used_bytes(root)
                self._measured[root] = time.monotonic(), used
            most = min(CACHE_BYTES, (shutil.disk_usage(root).free + used) // SHARE_OF_DISK)
            return used + size <= most
        return False

    def take(self, root: Path, size: int) -> None:
        """Note that kept row groups take so many bytes more in a folder."""
        with self._lock:
            at, used = self._measured.get(root, (0.0, 0))
            self._measured[root] = at, used + size


def _used_bytes(root: Path) -> int:
    """The size of all kept row groups. If little room is left, those that nobody uses go."""
    oldest = time.time() - UNUSED_S
    unused, used = list[tuple[Path, int]](), 0
    for path in root.glob("*/*"):
        with suppress(FileNotFoundError):  # another process deletes them, too
            status = path.stat()
            if status.st_mtime < oldest:
                unused.append((path, status.st_size))
            used += status.st_size
    is_crowded = used > CACHE_BYTES // 2
    for path, size in unused:
        if is_crowded or path.name.endswith(TEMPORARY):  # a process was killed that wrote it
            OPENED.drop(path)
            path.unlink(missing_ok=True)
            used -= size
    return used


def _has_views(kind: pa.DataType) -> bool:
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return True
    return any(_has_views(kind.field(number).type) for number in range(kind.num_fields))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


KNOWN: OrderedDict[tuple[Path, str], RowGroups] = OrderedDict()
"""The row groups of the data files that this process has read."""
OPENED, ROOM = OpenFiles(KeptGroup), Room()
"""What this process has mapped, and has measured."""
