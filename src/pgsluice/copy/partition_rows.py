"""Rows of some partitions, which one commit replaces at their table's target.

A task stages them as changes of the table's keys (ADR 0034, ADR 0038). Partitions that came bring
their rows. Where partitions are gone, the target may have any rows of their bounds, and the source
other ones: of partitions with the same bounds that came since, or of a default partition. So all
rows that the target has there are deleted, and all that the source has there are put instead. Which
keys these are is decided by the key alone, so no other task changes one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pgsluice.changes.net import NetChanges, delete_rows, put_rows
from pgsluice.errors import EvaluationError, Remedy, TableError
from pgsluice.row_filter import FilterEvaluator
from pgsluice.sinks.contract import StagedChanges, StagedRows, TargetTable
from pgsluice.sinks.fence import TableWriter

_DELETES = 500_000
"""How many keys are deleted together: each time the target's files are searched for them."""


@dataclass(frozen=True, slots=True)
class StagedPartitionRows(StagedRows):
    """Rows of partitions that one task has staged as changes of their table.

    Attributes:
        changes: what the commit takes.
    """

    changes: StagedChanges | None = None


def stage_partition_rows(
    writer: TableWriter,
    table: TargetTable,
    rows: Iterable[pa.RecordBatch],
    is_gone: FilterEvaluator | None = None,
) -> StagedPartitionRows:
    """Stage rows of partitions.

    Args:
        rows: what the source has, each row with another key.
        is_gone: the rows of the target that ``rows`` replace; None: those with the same keys.

    Raises:
        TableError: the target cannot take them, and the table has to be copied.
    """
    if not table.key or not writer.can_stage_changes():
        raise _copied_again(table, "the target cannot take rows of a partition alone")
    pieces: Iterator[NetChanges] = (put_rows(batch, table.key) for batch in rows)
    if is_gone is not None:
        pieces = _replacing(pieces, _gone_keys(writer, table, is_gone), table)
    staged = writer.stage_changes(pieces)
    count = staged.rows_inserted + staged.rows_updated
    return StagedPartitionRows(count, staged.bytes_written, changes=staged)


def _replacing(
    puts: Iterator[NetChanges], gone: Iterator[pa.Table], table: TargetTable
) -> Iterator[NetChanges]:
    yield from (delete_rows(keys, table.schema, table.key) for keys in gone)
    yield from puts


def _gone_keys(
    writer: TableWriter, table: TargetTable, is_gone: FilterEvaluator
) -> Iterator[pa.Table]:
    """The keys of the target's rows that a condition is true for."""
    batches = writer.keys(table.key)
    if batches is None:
        raise _copied_again(table, "the keys of the target cannot be read")
    held: list[pa.RecordBatch] = []
    for batch in batches:
        columns = {name: batch.column(name) for name in is_gone.columns}
        try:
            passing = is_gone.passing(columns, len(batch))
        except (EvaluationError, TypeError) as error:
            why = "which rows of the target a partition had cannot be computed"
            raise _copied_again(table, why) from error
        held.append(batch.filter(pa.array(passing)))
        if sum(map(len, held)) >= _DELETES:
            yield _distinct(held)
            held = []
    if any(map(len, held)):
        yield _distinct(held)


def _distinct(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Each key once: rows of a partition that is gone may have the keys of newer ones."""
    keys = pa.Table.from_batches(batches)
    return keys.group_by(keys.schema.names).aggregate([]).select(keys.schema.names)


def _copied_again(table: TargetTable, why: str) -> TableError:
    return TableError(f"{table.title}: {why}", table=table.title, remedy=Remedy.COPY)
