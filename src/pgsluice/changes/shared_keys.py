"""Finds keys that several rows have, among any number of rows, in bounded memory.

It is used only if the source does not prove that a key is unique. The numbers of the keys
(:mod:`.key_numbers`) are divided among temporary files, and each file is checked separately.

Its figure: less than 1 GB in a worker for a transaction of 10 million rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from pgsluice.changes.key_numbers import Numbers, numbers_of, spread
from pgsluice.changes.lineage import number_rows

ROWS_AT_ONCE = 4 * 2**20
"""The approximate number of key numbers that are compared together: 32 MiB."""
_COMPARED_ROWS = 2**16
_MOST_COMPARED = 2**20
"""More repeated numbers than this cannot be accidental collisions."""


def count_shared_keys(
    read: Callable[[], Iterable[pa.Table]], rows: int, folder: Path | None = None
) -> int:
    """The number of keys that several rows have.

    Keys with the same number are compared until two of them are equal. From then on, only numbers
    are counted: with 64 bits, one in a billion belongs to two different keys.

    Args:
        read: returns the keys of all rows, in pieces; called at most twice.
        rows: the approximate number of rows.
        folder: the folder for temporary files, if there are many rows.
    """
    count = 0
    candidates = [np.empty(0, np.uint64)]
    are_exact = True
    with ExitStack() as opened:
        parts = _Parts(rows, folder, opened)
        for keys in read():
            numbered = numbers_of(keys)
            are_exact &= numbered.are_exact
            parts.add(numbered.numbers)
        for repeated in parts.repeated():
            count += len(repeated)
            if not are_exact and sum(map(len, candidates)) < _MOST_COMPARED:
                candidates.append(repeated)
    if are_exact or not count or _have_equal_keys(read(), np.sort(np.concatenate(candidates))):
        return count
    return 0


class _Parts:
    """Numbers, divided into parts; equal numbers are in the same part."""

    def __init__(self, rows: int, folder: Path | None, opened: ExitStack) -> None:
        count = -(-max(rows, 1) // ROWS_AT_ONCE)
        self._held: list[Numbers] = []
        self._files: list[IO[bytes]] = []
        if count > 1:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            self._files = [opened.enter_context(_temporary(folder)) for _ in range(count)]

    def add(self, numbers: Numbers) -> None:
        """Add numbers to their parts."""
        if not self._files:
            self._held.append(numbers)
            return
        count = np.uint64(len(self._files))
        part = (((spread(numbers) >> np.uint64(32)) * count) >> np.uint64(32)).astype(np.uint16)
        order = np.argsort(part, kind="stable")
        ends = np.searchsorted(part[order], np.arange(len(self._files)), "right")
        for file, some in zip(self._files, np.split(numbers[order], ends[:-1]), strict=True):
            file.write(some.tobytes())

    def repeated(self) -> Iterator[Numbers]:
        """For each part, the numbers that occur more than once. Only the distinct numbers of one
        part are in memory, and a few rows."""
        if not self._files:
            yield _repeated([np.concatenate([np.empty(0, np.uint64), *self._held])])
        for file in self._files:
            file.seek(0)
            size = 8 * ROWS_AT_ONCE
            yield _repeated(
                np.frombuffer(some, np.uint64) for some in iter(partial(file.read, size), b"")
            )


def _temporary(folder: Path | None) -> IO[bytes]:
    """A file without a name, which disappears with its process."""
    return tempfile.TemporaryFile(dir=folder)


def _repeated(chunks: Iterable[Numbers]) -> Numbers:
    """The numbers that occur more than once in all chunks together."""
    seen = repeated = np.empty(0, np.uint64)
    for chunk in chunks:
        numbers = np.sort(chunk)
        again = np.unique(numbers[1:][numbers[1:] == numbers[:-1]])
        if len(seen):  # a number comes so often that its part is larger than others
            numbers = np.unique(numbers)
            again = np.union1d(again, np.intersect1d(numbers, seen))
            numbers = np.union1d(seen, numbers)
        repeated = np.union1d(repeated, again)
        seen = numbers
    return repeated


def _have_equal_keys(batches: Iterable[pa.Table], candidates: Numbers) -> bool:
    """Whether two rows with one of these numbers have the same key."""
    held: list[pa.Table] = []
    for keys in batches:
        numbers = numbers_of(keys).numbers
        places = np.searchsorted(candidates, numbers)
        places[places == len(candidates)] = 0
        held.append(keys.filter(pa.array(candidates[places] == numbers)))
        if sum(map(len, held)) >= _COMPARED_ROWS:
            if _has_equal(held):
                return True
            held = [pa.concat_tables(held).combine_chunks()]
    return _has_equal(held)


def _has_equal(parts: Sequence[pa.Table]) -> bool:
    if not any(map(len, parts)):
        return False
    keys = pa.concat_tables(parts)
    return len(np.unique(number_rows(keys, tuple(keys.schema.names)))) < len(keys)
