"""A Delta table that is a change log; see :mod:`pgsluice.sinks.log_fence`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pyarrow as pa

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, StagedRows
from pgsluice.sinks.delta.commit import actions_of
from pgsluice.sinks.delta.features import refuse_unknown_rules
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.layout import refuse_other_partitions
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.attempt import attempt
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.upkeep import live_rows


class DeltaLogHandle(DeltaHandle):
    """A Delta table that is a change log; arguments as of :class:`.DeltaHandle`."""

    def can_append(self) -> bool:
        return True

    @attempt()
    def append(self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Add files. Only if columns get another type, the existing rows are rewritten."""
        old = self._snapshot
        refuse_unknown_rules(old, self._table.title, is_log=True)
        refuse_other_partitions(old, self._layout, self._table.title, keeps_rows=True)
        self._layout.check(schema, self._table.title)
        edit = Edit(new=staging.staged_files(staged))
        if any(schema.field(field.name).type != field.type for field in old.schema):
            rows = live_rows(old, old.files.values())
            cast = (with_all_columns(pa.table(batch), schema).to_batches() for batch in rows)
            part = self.stage_rows(schema, chain.from_iterable(cast))
            edit = Edit([*old.files], new=[*staging.staged_files([part]), *edit.new])
        actions, self._bytes_written = actions_of(old, edit)
        changes = self._definition(schema) if schema != old.schema else self._allowed()
        self._commit("WRITE", [*changes, *actions], position)
        rows_added = sum(part.rows for part in staged)
        return Applied(self.version, rows_inserted=rows_added, bytes_written=self._bytes_written)
