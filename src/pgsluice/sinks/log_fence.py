"""The write fence of change logs: each change is a row once, and no row is ever replaced.

A log is written like any other target: a write is one commit with its position, which is skipped if
the log is already there (:mod:`.fence`). Only the commit differs: it adds rows. A copy adds its
rows behind a ``snapshot`` row, so the log keeps what was before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from pgsluice.changes.change_log import LogColumns
from pgsluice.errors import TableError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, Sink, StagedRows, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.joined_columns import joined_columns, with_all_columns


class LogWriter(TableWriter):
    """Writes one change log, each position once; used by one task, never shared.

    Args:
        table: the table at the source. Its columns are those of the table or of the log.
        identity: the required origin of the log's rows; its mode is a log.
    """

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

            def attempt() -> Applied:
                marker = self._opened.marker_since_start()
                if marker is not None and marker.reaches(self._identity, position):
                    return self._skipped(marker)
                self._opened.refuse_another_start()
                now = self._joined(schema)  # others may have added columns since
                return self._opened.write(lambda handle: handle.append(now, [staged], position))

            return self._until_first(attempt)

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
                    version = self.version() + 1
                    number = self._identity.copy_number
                    row = self._log.column_added(
                        schema, at, values, copy_number=number, version=version
                    )
                    staged = [self._stage(schema, [row])]
                altered = self._opened.write(lambda handle: handle.append(schema, staged, at))
            failpoint("target.altered")
            return replace(altered, rows_inserted=0)

        return self._changed(change)

    def can_stage(self) -> bool:
        """Whether several tasks can stage a copy: always."""
        return True

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

        def attempt() -> Applied:
            if (skipped := self._skip_load(position)) is not None:
                return skipped
            handle = self._opened.handle
            schema = self._joined(self._table.schema)
            row = self._log.copy_begins(schema, position, self._identity.copy_number)
            with handle.whole_attempt():
                parts = [self._stage(schema, [row]), *staged]
                if self._has_other_rows():
                    return self._opened.write(lambda handle: handle.commit_load(parts, position))
                return self._opened.write(lambda handle: handle.append(schema, parts, position))

        return self._until_first(attempt)

    def _has_other_rows(self) -> bool:
        """Whether the target has rows that are no log of a table of this spool."""
        return self._opened.has_rows_of(ours=False)

    def _stage(self, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write rows with some of the log's columns, invisible to readers."""
        whole = (with_all_columns(batch, schema) for batch in rows)
        with self._opened.naming_disk_trouble():
            return self._opened.handle.stage_rows(schema, whole)

    def _joined(self, wanted: pa.Schema) -> pa.Schema:
        """The columns that the log has, in types that also hold the wanted ones, and the others of
        these.

        Raises:
            TableError: the sink cannot keep logs, or a column of the log has a type that neither
                holds the new values nor has all of its own in the new one.
        """
        handle, title = self._opened.handle, self._table.title
        if not handle.can_append():
            raise TableError(
                f"the sink of table {title} does not support change logs",
                hint='set mode = "current" in the subscription, or use another sink',
                table=title,
            )
        now = handle.target_types(wanted)
        existing = handle.schema()
        if existing is None or self._has_other_rows():
            return now
        return joined_columns(existing, now, title, handle.location)
