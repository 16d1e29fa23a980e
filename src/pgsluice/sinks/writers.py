"""The write fences of change logs, of histories, and of targets that keep deleted rows.

Each is written like any other target: a write is one commit with its position, which is skipped if
the target is already there (:mod:`.fence`). They differ in what a commit adds:

- A change log gets a row for each change, and no row is ever replaced. A copy adds its rows behind
  a ``snapshot`` row, so the log keeps what was before it.
- A history gets versions (:mod:`pgsluice.changes.history.versions`). A copy again ends the versions
  that differ from it.
- Where deleted rows are kept, a delete is a row with a time in a column
  (:mod:`pgsluice.changes.deleted_rows`). Rows of copies have no time. A copy again keeps the rows
  that it does not have: they are deleted at its time, unless they were before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.change_log import LogColumns
from pgsluice.changes.change_rows import refuse_names
from pgsluice.changes.deleted_rows import TIME, with_deleted_column, with_marks
from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.net import NetChanges, delete_rows
from pgsluice.errors import ParkReason, PgsluiceError, Remedy, TableError
from pgsluice.failpoints import failpoint
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import (
    AddedColumn,
    Applied,
    Sink,
    StagedRows,
    TableHandle,
    TargetContent,
    TargetTable,
)
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.joined_columns import another_target, joined_columns

_UNIQUE_KEY = (
    "give the table a primary key that is NOT DEFERRABLE (rows can share a deferrable key within a "
    "transaction, and PostgreSQL does not use it as a replica identity)"
)


def table_writer(sink: Sink, table: TargetTable, identity: TargetIdentity) -> TableWriter:
    """The writer of a target: of a change log, a history, kept deleted rows, or current rows."""
    if identity.mode.log is not None:
        return LogWriter(sink, table, identity)
    if identity.mode.history is not None:
        return HistoryWriter(sink, table, identity)
    if identity.mode.deleted_column is not None:
        return MarkingWriter(sink, table, identity)
    return TableWriter(sink, table, identity)


class LogWriter(TableWriter):
    """Writes one change log, each position once; used by one task, never shared. The columns of
    ``table`` are those of the source's table or of the log."""

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        assert identity.mode.log is not None
        self._log: LogColumns = identity.mode.log
        columns = self._log.of_table(table.schema, table.title)
        super().__init__(sink, replace(table, schema=columns, key=()), identity)

    def append(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: Lsn) -> Applied:
        """Add the rows of changes that start at the log's position, in one commit.

        Args:
            rows: batches with the columns of the log, read during iteration, once.
            schema: these columns. The log also keeps others that it has.

        Raises:
            TableError: the log has rows of another source, was changed by others, or the changes
                do not fit.
            PgsluiceError: another attempt moved the log to a position before ``position``: the
                changes have to be decoded again from there.
        """
        self._opened.refuse_another_start()
        with self._opened.handle.whole_attempt():
            staged = self._stage(self._joined(schema), rows)

            # Others may have added columns since.
            return self._write_once(
                position, lambda handle: handle.append(self._joined(schema), [staged], position)
            )

    def alter(self, added: Sequence[AddedColumn], widened: Sequence[pa.Field]) -> Applied:
        """As in :class:`.TableWriter`. Existing rows have NULL in added columns; an ``add_column``
        row, in the same commit, has the values of the table's rows."""

        def change(existing: pa.Schema, at: Lsn) -> Applied | None:
            lacking = [column for column in added if column.field.name not in existing.names]
            schema = self._joined(pa.schema([*(column.field for column in lacking), *widened]))
            if schema == existing:
                return None
            staged = []
            values = {each.field.name: each.value for each in lacking if each.value.is_valid}
            with self._opened.handle.whole_attempt():
                if values:
                    number, version = self._identity.copy_number, self.version() + 1
                    row = self._log.column_added(
                        schema, at, values, copy_number=number, version=version
                    )
                    staged = [self._stage(schema, [row])]
                altered = self._opened.write(lambda handle: handle.append(schema, staged, at))
            failpoint("target.altered")
            return replace(altered, rows_inserted=0)

        return self._changed(change)

    # Copies: their rows follow those of earlier copies.

    def stage_load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> StagedRows:
        """As in :class:`.TableWriter`; the log gets the rows as inserts."""
        self._skip_load(position)
        schema = self._joined(self._table.schema)
        copy_number = self._identity.copy_number
        of_log = (self._log.copied(batch, schema, position, copy_number) for batch in rows)
        return self._stage(schema, of_log)

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """As in :class:`.TableWriter`; rows from before stay, unless another spool wrote them."""

        def write(handle: TableHandle) -> Applied:
            schema = self._joined(self._table.schema)
            row = self._log.copy_begins(schema, position, self._identity.copy_number)
            with handle.whole_attempt():
                parts = [self._stage(schema, [row]), *staged]
                if self._opened.has_rows_of(ours=False):
                    return handle.commit_load(parts, position)
                return handle.append(schema, parts, position)

        return self._copy_once(position, write)

    def _joined(self, wanted: pa.Schema) -> pa.Schema:
        """The columns that the log has, in types that also hold the wanted ones, and the others of
        these.

        Raises:
            TableError: the sink cannot keep logs, or a column of the log has a type that neither
                holds the new values nor has all of its own in the new one.
        """
        self._opened.refuse_unsupported()
        handle = self._opened.handle
        now = handle.target_types(wanted)
        existing = handle.schema()
        if existing is None or self._opened.has_rows_of(ours=False):
            return now
        return joined_columns(existing, now, self._table.title, handle.location)


class HistoryWriter(TableWriter):
    """Writes one history, each position once; used by one task, never shared. ``table`` is the
    source's, with or without the history's columns."""

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        assert identity.mode.history is not None
        self._columns: HistoryColumns = identity.mode.history
        schema = table.schema
        if len(schema):
            schema = self._columns.of_table(schema)
        super().__init__(sink, replace(table, schema=schema), identity)

    def adoptable(self) -> TargetContent | None:
        """None: versions from before are not read again."""
        return None

    def stage_load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> StagedRows:
        """As in :class:`.TableWriter`; the rows are current versions since the position."""
        self._skip_load(position)
        versions = (self._columns.copied(batch, position) for batch in rows)
        if (schema := self._columns_after()) is not None:
            return self._stage(schema, versions)
        with self._opened.naming_disk_trouble():
            return self._opened.handle.stage_load(versions)

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """As in :class:`.TableWriter`; versions from before stay, unless another spool wrote them.

        Raises:
            TableError: also if the key has other columns than that of the versions from before.
            PgsluiceError: the target is past the position.
        """

        def write(handle: TableHandle) -> Applied:
            schema = self._columns_after()
            if schema is None:
                return handle.commit_load(staged, position)
            reached = handle.marker()
            if reached is not None and (reached.position or 0) > position:
                raise PgsluiceError(
                    f"the history of table {self._table.title} has changes up to "
                    f"{reached.position} already, past the copy at {position}",
                    hint="nothing to do: pgsluice retries the copy, with a newer snapshot",
                )
            return handle.load_versions(schema, staged, position)

        return self._copy_once(position, write)

    def _fitting(self, changes: NetChanges) -> NetChanges:
        if changes.closings is None:
            raise TableError(
                f"{self._table.title}: rows of a partition alone cannot be added to a history",
                table=self._table.title,
                remedy=Remedy.COPY,
            )
        return super()._fitting(changes)

    def _columns_after(self) -> pa.Schema | None:
        """The columns after a copy; None: the target has no versions that stay."""
        handle, title = self._opened.handle, self._table.title
        existing = handle.schema()
        if existing is None or not self._opened.has_rows_of(ours=True):
            return None
        had_key = {field.name for field in self._columns.without(existing) if not field.nullable}
        if had_key != {*self._table.key}:
            raise TableError(
                f"the history of table {title} at {handle.location} has the key "
                f"({', '.join(sorted(had_key))}), but the table now has the key "
                f"({', '.join(self._table.key)})",
                hint=another_target(title),
                table=title,
                reason=ParkReason.KEY,
            )
        return joined_columns(
            existing, handle.target_types(self._table.schema), title, handle.location
        )


def refuse_history(table: TargetTable, columns: HistoryColumns) -> None:
    """Refuse a table that cannot have a history.

    Raises:
        TableError: it has a column with the name of one of the history's, or no key that the source
            proves.
    """
    refuse_names(columns.names, table.schema.names, table.title, "the table's history")
    if not table.key or not table.is_key_proved:
        raise TableError(
            f"table {table.title} has no key with a unique index, which a history needs",
            hint=f"{_UNIQUE_KEY}, or set another mode in the subscription and restart "
            f"`pgsluice run CONFIG`; then copy the table: {copy_again(table.title)}",
            table=table.title,
            reason=ParkReason.KEY,
        )


class MarkingWriter(TableWriter):
    """Writes one table that keeps deleted rows; used by one task, never shared. ``table`` is the
    source's, with or without the column of their times."""

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        assert identity.mode.deleted_column is not None
        self._column: str = identity.mode.deleted_column
        schema = table.schema
        if self._column not in schema.names and len(schema):
            schema = schema.append(pa.field(self._column, TIME))
        super().__init__(sink, replace(table, schema=schema), identity)

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch] | None:
        """As in :class:`.TableWriter`, of the rows that are not deleted."""
        if (batches := super().keys([*columns, self._column])) is None:
            return None
        return (
            batch.filter(pc.is_null(batch.column(self._column))).select(list(columns))
            for batch in batches
        )

    def truncation(self, net: NetChanges, time: int) -> Iterator[NetChanges]:
        """Net changes, which a TRUNCATE at a time (microseconds since 1970) comes before, in pieces
        that mark the target's rows first.

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
            hint="set deleted_column in the subscription to another name; restart `pgsluice run "
            f"CONFIG`, then copy the table: {copy_again(title)}",
            table=title,
            column=column,
            reason=ParkReason.COLUMNS,
        )
    if table.key and not table.is_key_proved:
        raise deletes_not_kept(title)


def deletes_not_kept(title: str) -> TableError:
    """The error of a table whose deleted rows cannot be kept, because it has no unique key."""
    return TableError(
        f"table {title} has no key with a unique index, which deleted_column needs",
        hint=f"{_UNIQUE_KEY}, or remove deleted_column from the subscription and restart "
        f"`pgsluice run CONFIG`; then copy the table: {copy_again(title)}",
        table=title,
        reason=ParkReason.KEY,
    )
