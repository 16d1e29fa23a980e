"""Sidecar files: the keys of one data file's rows, on a disk and in memory.

A sidecar consists of runs; a run covers a limited number of rows of the data file. It has the
numbers of the keys (:mod:`pgsluice.changes.key_numbers`), sorted, the row of each, and the keys
themselves where numbers are not exact. Because of runs, writing the sidecar of a large file takes
limited memory.

Sidecars are memory-mapped. A batch may search those of all files of a large table, so the mapped
memory that stays resident is limited.

In the file, a run is an Arrow IPC stream. The length of all runs and a checksum follow them.
The checksum begins with the sidecar's subject, the data file and the key columns: a sidecar of
something else is as useless as a damaged one.

Its figure: merging 500 keys into 1 million rows, at least 50 times less CPU than a MERGE.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from pgsluice.changes.key_numbers import numbers_of
from pgsluice.disk import naming
from pgsluice.failpoints import failpoint
from pgsluice.sinks.lake.keys.entries import KeyEntries
from pgsluice.small_files import replacing

FORMAT = "4"
"""The format number of sidecars; it is part of their subject, so other formats are ignored."""
ROWS_IN_A_RUN = 2**20
"""The maximum number of rows in a run; a data file has one or more runs."""
RESIDENT_BYTES = 128 * 2**20
"""The maximum size of mapped sidecars in memory, besides the one that is searched."""
_OPEN_AT_ONCE = 4096
"""The maximum number of sidecars that a process has mapped."""
_TRAILER = struct.Struct(">QI")
"""The length of the runs in bytes, and the checksum."""
_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BLOCK_BYTES = 2**20


class Sidecar:
    """A sidecar as it is mapped.

    Args:
        content: the whole file, mapped; it holds no file descriptor.
    """

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content
        self._runs = tuple(_runs(content[: -_TRAILER.size]))

    @property
    def size(self) -> int:
        """In bytes."""
        return int(self._content.size)

    def runs(self) -> Iterator[KeyEntries]:
        """Its runs, in the order of their rows; one of them is in memory at a time if the sidecar
        is large."""
        for run in self._runs:
            yield run
            if self.size > RESIDENT_BYTES:
                self.leave_memory()

    def leave_memory(self) -> None:
        """Take its pages out of this process's memory, where the system can; the next search gets
        those that it reads from the system's cache, or from the disk."""
        advise = getattr(ctypes.CDLL(None), "madvise", None)
        if advise is not None:
            address, size = ctypes.c_void_p(self._content.address), ctypes.c_size_t(self.size)
            advise(address, size, mmap.MADV_DONTNEED)


class OpenSidecars:
    """The sidecars that this process has mapped; its threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, Sidecar] = OrderedDict()
        self._resident: OrderedDict[Path, int] = OrderedDict()
        self._resident_bytes = 0  # their sum: a search through thousands of files asks for each

    def has(self, path: Path) -> bool:
        """Whether one is mapped."""
        return path in self._by_path

    def get(self, path: Path, subject: str) -> Sidecar | None:
        """A sidecar, which is searched next; None: it is missing, damaged, or of something else."""
        with self._lock:
            sidecar = self._by_path.get(path)
        if sidecar is None and (sidecar := _read(path, subject)) is None:
            return None
        with self._lock:
            self._by_path[path] = sidecar
            self._by_path.move_to_end(path)
            self._resident_bytes += sidecar.size - self._resident.pop(path, 0)
            self._resident[path] = sidecar.size
            while len(self._by_path) > _OPEN_AT_ONCE:
                self._forget(next(iter(self._by_path)))
            while len(self._resident) > 1 and self._resident_bytes > RESIDENT_BYTES:
                left, size = self._resident.popitem(last=False)
                self._resident_bytes -= size
                self._by_path[left].leave_memory()
        return sidecar

    def drop(self, path: Path) -> None:
        """Let one go."""
        with self._lock:
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._by_path.pop(path, None)
        self._resident_bytes -= self._resident.pop(path, 0)


def write_sidecar(path: Path, subject: str, keys: Iterable[pa.Table]) -> None:
    """Write a data file's sidecar, by a temporary name.

    Args:
        path: the path of the sidecar; its folder need not exist.
        subject: the data file, and the key columns with their types.
        keys: the key columns of the data file's rows, in their order.
    """
    with _placed(path) as file:
        _write_runs(file, keys)
        size = file.tell()
        file.write(_TRAILER.pack(size, _checksum(file, size, subject)))
    failpoint("delta.written")


def place_sidecar(path: Path, subject: str, content: bytes) -> bool:
    """Write a sidecar that was made elsewhere; False: it is damaged, or of something else."""
    if not _is_whole(io.BytesIO(content), len(content), subject):
        return False
    with _placed(path) as file:
        file.write(content)
    return True


@contextmanager
def _placed(path: Path) -> Iterator[BinaryIO]:
    with naming(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, 0o666) as file:
            yield file


def _write_runs(file: BinaryIO, keys: Iterable[pa.Table]) -> None:
    first = 0
    for part in keys:
        for start in range(0, len(part), ROWS_IN_A_RUN):
            some = part.slice(start, ROWS_IN_A_RUN)
            batch = _batch(KeyEntries.of(some, numbers_of(some)), first + start)
            with pa.ipc.new_stream(file, batch.schema) as writer:
                writer.write_batch(batch)
        first += len(part)


def _batch(entries: KeyEntries, first: int) -> pa.RecordBatch:
    """A run whose rows begin with row ``first`` of the data file."""
    rows = entries.rows + np.uint32(first)
    # Names that no column of a table can have: Delta's names are never empty.
    columns = {"": pa.array(entries.numbers), "\0": pa.array(rows)}
    if entries.keys is not None:
        columns.update(
            (f"\0{name}", _joined(entries.keys.column(name))) for name in entries.keys.schema.names
        )
    return pa.record_batch(columns)


def _runs(content: pa.Buffer) -> Iterator[KeyEntries]:
    reader = pa.BufferReader(content)
    while reader.tell() < content.size:
        yield from map(_entries, pa.ipc.open_stream(reader))


def _entries(batch: pa.RecordBatch) -> KeyEntries:
    names = batch.schema.names[2:]
    keys = pa.table(batch.columns[2:], [name[1:] for name in names]) if names else None
    return KeyEntries(batch.column(0).to_numpy(), batch.column(1).to_numpy(), keys)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


def _read(path: Path, subject: str) -> Sidecar | None:
    """Map a sidecar; None: it is missing, damaged, or of something else.

    Raises:
        OSError: the process may open no more files, or has no memory.
    """
    try:
        with path.open("rb") as file:
            if not _is_whole(file, path.stat().st_size, subject):
                return None
        with pa.memory_map(str(path)) as mapped:
            return Sidecar(mapped.read_buffer())
    except OSError as error:
        if error.errno in _NOT_OF_THE_FILE:
            raise
        return None


def _is_whole(file: BinaryIO, size: int, subject: str) -> bool:
    """Whether a file of this size has a whole sidecar of the subject."""
    runs = size - _TRAILER.size
    if runs < 0:
        return False
    checksum = _checksum(file, runs, subject)
    return file.read(_TRAILER.size) == _TRAILER.pack(runs, checksum)


def _checksum(file: BinaryIO, size: int, subject: str) -> int:
    """Of the subject and the first ``size`` bytes; the file's position is behind them."""
    checksum = zlib.crc32(subject.encode())
    file.seek(0)
    while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
        checksum = zlib.crc32(block, checksum)
        size -= len(block)
    return checksum
