"""The write fence of targets that keep deleted rows, with the time of the delete in a column.

Net changes come with the column: a delete is a row with a time
(:mod:`pgsluice.changes.deleted_rows`). Rows of copies have no time. A copy again keeps the rows
that it does not have: they are deleted at its time, unless they were before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.deleted_rows import TIME, with_deleted_column, with_marks
from pgsluice.changes.net import NetChanges, delete_rows
from pgsluice.errors import ParkReason, Remedy, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, StagedRows, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity


class MarkingWriter(TableWriter):
    """Writes one table that keeps deleted rows; used by one task, never shared.

    Args:
        table: the table at the source, with or without the column.
        identity: the required origin of its rows; its mode names the column.
    """

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        assert identity.mode.deleted_column is not None
        self._column: str = identity.mode.deleted_column
        schema = table.schema
        if self._column not in schema.names and len(schema):
            schema = schema.append(pa.field(self._column, TIME))
        super().__init__(sink, replace(table, schema=schema), identity)

    def position(self) -> Lsn | None:
        """As in :class:`.TableWriter`.

        Raises:
            TableError: also if the target cannot keep deleted rows.
        """
        self._refuse_other_sinks()
        return super().position()

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch] | None:
        """As in :class:`.TableWriter`, of the rows that are not deleted."""
        batches = super().keys([*columns, self._column])
        return None if batches is None else self._live(batches, columns)

    def _live(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.is_null(batch.column(self._column))).select(list(columns))

    def truncation(self, net: NetChanges, time: int) -> Iterator[NetChanges]:
        """Net changes after a TRUNCATE in pieces that mark the target's rows first.

        Args:
            net: net changes that are truncated first.
            time: the TRUNCATE's, in microseconds since 1970.

        Raises:
            TableError: the table has no key, by which its rows could be marked.
        """
        if not net.key:
            raise deletes_not_kept(self._table.title)
        for batch in self.keys(net.key) or ():
            keys = pa.Table.from_batches([batch])
            yield self.marks(delete_rows(keys, net.schema, net.key), time)
        yield replace(net, truncated=False, only_new=False)

    def marks(self, net: NetChanges, time: int) -> NetChanges:
        """Net changes whose deletes have one time, in microseconds since 1970."""
        return with_marks(net, self._column, np.full(len(net.deletes), time, np.int64))

    def stage_load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> StagedRows:
        """As in :class:`.TableWriter`; no row is deleted."""
        self._refuse_other_sinks()
        return super().stage_load(map(self._completed, rows), position)

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._column in batch.schema.names:
            return batch
        columns = [*batch.columns, pa.nulls(len(batch), TIME)]
        field = pa.field(self._column, TIME)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema.append(field))

    def _fitting(self, changes: NetChanges) -> NetChanges:
        if changes.truncated or len(changes.deletes):
            raise TableError(
                f"{self._table.title}: deleted rows of a part of a batch cannot be marked",
                table=self._table.title,
                remedy=Remedy.COPY,
            )
        return super()._fitting(with_deleted_column(changes, self._column))

    def _refuse_other_sinks(self) -> None:
        title = self._table.title
        if not self._opened.handle.can_keep_deleted():
            raise TableError(
                f"the target of table {title} does not support deleted_column",
                hint="remove constraints, the change data feed and other rules from the target "
                "table, or remove deleted_column from the subscription",
                table=title,
            )


def refuse_deleted_column(table: TargetTable, column: str) -> None:
    """Refuse a table whose deleted rows could not be kept.

    Raises:
        TableError: it has such a column, or a key that the source does not prove. A table without
            a key is only appended to.
    """
    title, names = table.title, {name.casefold() for name in table.schema.names}
    if column.casefold() in names:
        raise TableError(
            f"table {title} already has the column {column!r}, which deleted_column names",
            hint="set deleted_column in the subscription to another name; then copy the table: "
            f"{copy_again(title)}",
            table=title,
            column=column,
            reason=ParkReason.COLUMNS,
        )
    if table.key and not table.is_key_proved:
        raise deletes_not_kept(title)


def deletes_not_kept(title: str) -> TableError:
    """Why deleted rows of a table cannot be kept."""
    return TableError(
        f"table {title} has no key with a unique index, which deleted_column needs",
        hint="give the table a primary key, or remove deleted_column from the subscription; then "
        "copy the table: " + copy_again(title),
        table=title,
        reason=ParkReason.KEY,
    )
