"""A Delta table that is a change log; see :mod:`pgsluice.sinks.writers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain

import pyarrow as pa

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Overtaken, StagedRows
from pgsluice.sinks.delta.changelog.retention import outdated
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.log.commit import actions_of
from pgsluice.sinks.delta.log.features import refuse_unknown_rules
from pgsluice.sinks.delta.log.layout import refuse_other_partitions
from pgsluice.sinks.delta.upkeep import remove
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
    def maintain(self, keep_versions: Iterable[int]) -> bool:
        """As for other tables; before, remove the files that are older than the retention."""
        before, mode = self.version, self._identity.mode
        gone: list[str] = []
        if before >= 0 and mode.log is not None and mode.log_retention_s is not None:
            gone = outdated(self._snapshot, mode.log, mode.log_retention_s)
        if gone:
            with suppress(Overtaken):  # the next maintenance does it
                self._snapshot = remove(self._snapshot, gone)
        return super().maintain(keep_versions) or self.version > before

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
