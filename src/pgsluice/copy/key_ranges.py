"""Rows of some ranges of keys, which one commit replaces at a target that is taken over.

All rows that the target has in these ranges are deleted, and all that the source has there are put
instead. This process reads them, since they are few, and holds one piece of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from pgsluice.changes.net import NetChanges, put_rows
from pgsluice.sinks.contract import StagedChanges
from pgsluice.sinks.fence import TableWriter
from pgsluice.snapshots.ranges import Portion
from pgsluice.verification import KeyRanges

_PIECE_BYTES = 64 * 2**20
"""For each piece, the target's files are searched for its keys."""


def portions_in(ranges: KeyRanges, portions: Sequence[Portion]) -> tuple[Portion, ...]:
    """The chunks of a table that read these ranges of keys."""
    return tuple(
        tuple(
            replace(read, condition=" AND ".join(filter(None, (read.condition, ranges.condition))))
            for read in portion
        )
        for portion in portions
    )


def stage_ranges(
    writer: TableWriter,
    deletes: Iterator[NetChanges],
    portions: Iterable[Iterable[pa.RecordBatch]],
    key: tuple[str, ...],
) -> StagedChanges:
    """Stage the rows of the source in place of those that the target has in some ranges.

    Args:
        writer: a writer of the target, open at the version in which the ranges were found.
        deletes: deletes of the target's rows in the ranges.
        portions: the source's rows, by chunks of :func:`portions_in`; an error that they raise
            ends it.
        key: the names of the key's columns.

    Raises:
        Exception: of the source or the target; nothing is committed.
    """
    rows = (put_rows(batch, key) for batch in _pieces(chain.from_iterable(portions)))
    return writer.stage_differences(chain(deletes, rows))


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches: a portion may have few rows of the ranges."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= _PIECE_BYTES:
            yield from _joined(held)
            held, held_bytes = [], 0
    yield from _joined(held)


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
