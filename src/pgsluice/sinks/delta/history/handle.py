"""A Delta table with each version of a row; see :mod:`pgsluice.sinks.lake.history`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, StagedRows
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.log.commit import actions_of
from pgsluice.sinks.delta.log.features import refuse_unknown_rules
from pgsluice.sinks.delta.log.layout import refuse_other_partitions
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.attempt import attempt
from pgsluice.sinks.lake.copied_rows import altered_batch, altered_schema, fitting_rows
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.history.copied_again import copied_edit
from pgsluice.sinks.lake.history.files import CLOSED, CURRENT, by_prefix
from pgsluice.sinks.lake.keys.index import with_sidecars
from pgsluice.sinks.lake.upkeep import live_rows, write_live_rows
from pgsluice.stores.contract import StoreError


class DeltaHistoryHandle(DeltaHandle):
    """A Delta table that is a history; arguments as of :class:`.DeltaHandle`."""

    _prefix = CURRENT

    def can_keep_versions(self) -> bool:
        return True

    @attempt()
    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        """Closed versions do not get the value of an added column, which the source did not have
        at their time."""
        old = self._snapshot
        refuse_unknown_rules(old, self._table.title)
        schema = self.target_types(altered_schema(old.schema, added, widened))
        self._layout.check(schema, self._table.title)
        edit = Edit()
        for prefix, files in by_prefix(old.files.values()).items():
            if prefix != CLOSED and (widened or any(column.value.is_valid for column in added)):
                rows = (altered_batch(batch, schema, added) for batch in live_rows(old, files))
                copied = fitting_rows(rows, schema, self._table.title)
                index = self._index_with(schema)
                edit.new += staging.write_files(
                    old.folder, schema, copied, index, prefix=prefix, layout=self._layout
                )
                edit.gone += [file.name for file in files]
            elif widened:
                edit.new += write_live_rows(replace(old, schema=schema), files)
                edit.gone += [file.name for file in files]
        actions, self._bytes_written = actions_of(old, edit)
        operation = "REPLACE COLUMNS" if edit.gone else "ADD COLUMNS"
        self._commit(operation, [*self._definition(schema), *actions], position)
        return Applied(self.version, bytes_written=self._bytes_written)

    @attempt()
    def load_versions(
        self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn
    ) -> Applied:
        old, history = self._snapshot, self._identity.mode.history
        assert history is not None
        refuse_unknown_rules(old, self._table.title)
        refuse_other_partitions(old, self._layout, self._table.title, keeps_rows=True)
        copied = staging.staged_files(staged)
        edit, ended = copied_edit(
            old,
            copied,
            replace(self._table, schema=schema),
            history,
            position,
            compared=history.without(self._table.schema).names,
            keeps_vectors=self._is_merged_on_read,
        )
        actions, self._bytes_written = actions_of(old, edit)
        change = self._definition(schema) if schema != old.schema else self._allowed()
        self._commit("WRITE", [*change, *actions], position)
        unused = [file for file in copied if file.name not in self._snapshot.files]
        with suppress(OSError, StoreError):
            old.folder.delete(*with_sidecars(old.folder, unused))
        rows = sum(part.rows for part in staged)
        return Applied(self.version, rows, rows_deleted=ended, bytes_written=self._bytes_written)
