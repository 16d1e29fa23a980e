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
from itertools import chain

import numpy as np
import pyarrow as pa

from pgsluice.changes.net import NetChanges, delete_rows, put_rows
from pgsluice.columnar.changes import Mask
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
    if not table.is_key_proved:
        raise _copied_again(
            table, "rows of a partition may have the keys of other partitions' rows"
        )
    pieces: Iterator[NetChanges] = (put_rows(batch, table.key) for batch in rows)
    if is_gone is not None:
        pieces = chain(deletes_of_rows(writer, table, [is_gone]), pieces)
    staged = writer.stage_changes(pieces)
    count = staged.rows_inserted + staged.rows_updated
    return StagedPartitionRows(count, staged.bytes_written, changes=staged)


def deletes_of_rows(
    writer: TableWriter, table: TargetTable, conditions: Sequence[FilterEvaluator]
) -> Iterator[NetChanges]:
    """Net changes that delete the target's rows that one of some conditions is true for.

    Args:
        writer: of the target; the deletes have to be staged with it.
        conditions: on columns of the table's key.

    Raises:
        TableError: these rows cannot be found, and the table has to be copied.
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
    keys: pa.RecordBatch, table: TargetTable, conditions: Sequence[FilterEvaluator]
) -> Mask:
    """Which keys one of the conditions is true for."""
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
    """Each key once: rows of a partition that is gone may have the keys of newer ones."""
    keys = pa.Table.from_batches(batches)
    return keys.group_by(keys.schema.names).aggregate([]).select(keys.schema.names)


def _copied_again(table: TargetTable, why: str) -> TableError:
    return TableError(f"{table.title}: {why}", table=table.title, remedy=Remedy.COPY)
