"""The write fence of histories, which have each version of a row.

A history is written like any other target: a write is one commit with its position, which is
skipped if the history is already there (:mod:`.fence`). Changes come as versions
(:mod:`pgsluice.changes.history.versions`). A copy again ends the versions that differ from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from pgsluice.changes.change_rows import refuse_names
from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.net import NetChanges
from pgsluice.errors import ParkReason, PgsluiceError, Remedy, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Sink, StagedRows, TargetContent, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.joined_columns import another_target, joined_columns, with_all_columns


class HistoryWriter(TableWriter):
    """Writes one history, each position once; used by one task, never shared.

    Args:
        table: the table at the source, with or without the history's columns.
        identity: the required origin of the rows; its mode is a history.
    """

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        assert identity.mode.history is not None
        self._columns: HistoryColumns = identity.mode.history
        schema = table.schema
        if len(schema):
            schema = self._columns.of_table(schema)
        super().__init__(sink, replace(table, schema=schema), identity)

    def position(self) -> Lsn | None:
        """As in :class:`.TableWriter`.

        Raises:
            TableError: also if the target cannot be a history.
        """
        self._refuse_other_sinks()
        return super().position()

    def adoptable(self) -> TargetContent | None:
        """None: versions from before are not read again."""
        return None

    def can_stage(self) -> bool:
        """Whether several tasks can stage a copy: always."""
        return True

    def stage_load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> StagedRows:
        """As in :class:`.TableWriter`; the rows are current versions since the position."""
        self._refuse_other_sinks()
        self._skip_load(position)
        versions = (self._columns.copied(batch, position) for batch in rows)
        handle = self._opened.handle
        schema = self._columns_after()
        with self._opened.naming_disk_trouble():
            if schema is None:
                return handle.stage_load(versions)
            return handle.stage_rows(schema, (with_all_columns(rows, schema) for rows in versions))

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """As in :class:`.TableWriter`; versions from before stay, unless another spool wrote them.

        Raises:
            TableError: also if the key has other columns than that of the versions from before.
            PgsluiceError: the target is past the position.
        """

        def attempt() -> Applied:
            if (skipped := self._skip_load(position)) is not None:
                return skipped
            schema = self._columns_after()
            if schema is None:
                return self._opened.write(lambda handle: handle.commit_load(staged, position))
            reached = self._opened.handle.marker()
            if reached is not None and (reached.position or 0) > position:
                raise PgsluiceError(
                    f"the history of table {self._table.title} has changes up to "
                    f"{reached.position} already, past the copy at {position}",
                    hint="pgsluice retries the copy",
                )
            return self._opened.write(lambda handle: handle.load_versions(schema, staged, position))

        return self._until_first(attempt)

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

    def _refuse_other_sinks(self) -> None:
        if not self._opened.handle.can_keep_versions():
            raise TableError(
                f"the target of table {self._table.title} does not support a history",
                hint="remove constraints, the change data feed and other rules from the target "
                'table, or set mode = "current" in the subscription',
                table=self._table.title,
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
            hint="give the table a primary key, or set another mode in the subscription; then copy "
            "the table: " + copy_again(table.title),
            table=table.title,
            reason=ParkReason.KEY,
        )
