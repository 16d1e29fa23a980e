"""Stages rows of some partitions, or of some ranges of keys, which one commit replaces in their
table's target.

A task stages rows of partitions as changes of the table's keys (ADR 0034, ADR 0038). Rows of new
partitions are added. Within the bounds of removed partitions, the target may have any rows, and the
source may have other ones: of newer partitions with the same bounds, or of a default partition. So
all rows of the target within these bounds are replaced by those of the source. The bounds depend on
the key alone, so no other task changes the same keys.

Of a target that is taken over, the rows of the ranges of keys that differ are replaced. The driver
reads them, since they are few, and holds one piece of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pgsluice.changes.net import NetChanges, delete_rows, put_rows
from pgsluice.columnar.changes import Mask
from pgsluice.errors import EvaluationError, Remedy, TableError
from pgsluice.rejects.copied import CopiedRejects
from pgsluice.row_filter import FilterEvaluator
from pgsluice.sinks.contract import StagedChanges, StagedRows, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.snapshots.ranges import Portion

if TYPE_CHECKING:
    from pgsluice.verification import KeyRanges

_DELETES = 500_000
"""How many keys to delete at a time: each time, the target's files are searched for them."""

_PIECE_BYTES = 64 * 2**20
"""For each piece of ranges of keys, the target's files are searched for its keys."""


@dataclass(frozen=True, slots=True)
class StagedPartitionRows(StagedRows):
    """Rows of partitions that one task has staged as changes of their table."""

    changes: StagedChanges | None = None


def stage_partition_rows(
    writer: TableWriter,
    table: TargetTable,
    rows: Iterable[pa.RecordBatch],
    is_gone: FilterEvaluator | None,
    rejects: CopiedRejects,
) -> StagedPartitionRows:
    """Stage rows of partitions.

    Args:
        rows: the source's rows, with distinct keys.
        is_gone: conditions on the target's rows that ``rows`` replace; None: rows with the same
            keys.
        rejects: learns which rows are deleted.

    Raises:
        TableError: the target does not support it, so the table has to be copied.
    """
    if not table.key or not writer.can_stage_changes():
        raise _copied_again(
            table, "the target does not support replacing the rows of one partition"
        )
    if not table.is_key_proved:
        raise _copied_again(
            table, "rows of a partition may have the keys of other partitions' rows"
        )
    pieces: Iterator[NetChanges] = (put_rows(batch, table.key) for batch in rows)
    if is_gone is not None:
        deletes = deletes_of_rows(writer, table, [is_gone])
        pieces = chain(rejects.deleting(deletes), pieces)
    staged = writer.stage_changes(pieces)
    count = staged.rows_inserted + staged.rows_updated
    return StagedPartitionRows(count, staged.bytes_written, changes=staged)


def deletes_of_rows(
    writer: TableWriter, table: TargetTable, conditions: Sequence[FilterEvaluator | KeyRanges]
) -> Iterator[NetChanges]:
    """Net changes that delete the target's rows for which one of some conditions is true.

    Args:
        writer: the target's writer, with which the deletes have to be staged.
        conditions: conditions on columns of the table's key.

    Raises:
        TableError: these rows cannot be found, so the table has to be copied.
    """
    batches = writer.keys(table.key)
    if batches is None:
        raise _copied_again(table, "the keys of the target cannot be read")
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch.filter(pa.array(_fulfilling(batch, table, conditions))))
        if sum(map(len, held)) >= _DELETES:
            yield delete_rows(_distinct(held), table.schema, table.key)
            held = []
    if any(map(len, held)):
        yield delete_rows(_distinct(held), table.schema, table.key)


def _fulfilling(
    keys: pa.RecordBatch, table: TargetTable, conditions: Sequence[FilterEvaluator | KeyRanges]
) -> Mask:
    """The keys for which one of the conditions is true."""
    chosen = np.zeros(len(keys), np.bool_)
    for condition in conditions:
        columns = {name: keys.column(name) for name in condition.columns}
        try:
            chosen |= condition.passing(columns, len(keys))
        except (EvaluationError, TypeError) as error:
            why = "which rows of the target a partition had cannot be computed"
            raise _copied_again(table, why) from error
    return chosen


def _distinct(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The distinct keys: rows of a removed partition may have the same keys as newer ones."""
    keys = pa.Table.from_batches(batches)
    return keys.group_by(keys.schema.names).aggregate([]).select(keys.schema.names)


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


def _copied_again(table: TargetTable, why: str) -> TableError:
    return TableError(f"table {table.title}: {why}", table=table.title, remedy=Remedy.COPY)
