"""Delta tables that keep the rows from before a copy: change logs and histories; see
:mod:`pgsluice.sinks.writers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Overtaken, StagedRows
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.log.features import refuse_unknown_rules
from pgsluice.sinks.delta.log.layout import refuse_other_partitions
from pgsluice.sinks.delta.retention import outdated
from pgsluice.sinks.delta.upkeep import commit_upkeep
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.attempt import attempt
from pgsluice.sinks.lake.copied_rows import altered_rows
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.history.copied_again import copied_edit
from pgsluice.sinks.lake.keys.index import with_sidecars
from pgsluice.sinks.lake.snapshot import CURRENT
from pgsluice.stores.contract import StoreError


class _KeepingHandle(DeltaHandle):
    def _refuse_others(self, schema: pa.Schema, *, is_log: bool = False) -> None:
        """Refuse a table to which rows in these columns cannot be added."""
        title = self._table.title
        refuse_unknown_rules(self._snapshot, title, is_log=is_log)
        refuse_other_partitions(self._snapshot, self._layout, title, keeps_rows=True)
        self._layout.check(schema, title)

    def _extend(
        self, schema: pa.Schema, staged: Sequence[StagedRows], edit: Edit, position: Lsn
    ) -> Applied:
        """Commit an edit with staged rows; the table has these columns afterwards."""
        is_same = schema == self._snapshot.schema
        definition = self._allowed() if is_same else self._definition(schema)
        self._commit("WRITE", definition, edit, position)
        rows = sum(part.rows for part in staged)
        return Applied(self.version, rows_inserted=rows, bytes_written=self._bytes_written)


class DeltaLogHandle(_KeepingHandle):
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
                self._snapshot = commit_upkeep(self._snapshot, "DELETE", Edit(gone))
        return super().maintain(keep_versions) or self.version > before

    @attempt()
    def append(self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Add files. Only if columns get another type, the existing rows are rewritten."""
        old = self._snapshot
        self._refuse_others(schema, is_log=True)
        edit = Edit(new=staging.staged_files(staged))
        if any(schema.field(field.name).type != field.type for field in old.schema):
            part = self.stage_rows(schema, altered_rows(old, old.files.values(), schema))
            edit = Edit([*old.files], new=[*staging.staged_files([part]), *edit.new])
        return self._extend(schema, staged, edit, position)


class DeltaHistoryHandle(_KeepingHandle):
    """A Delta table that is a history; arguments as of :class:`.DeltaHandle`."""

    _prefix = CURRENT

    def can_keep_versions(self) -> bool:
        return True

    @attempt()
    def load_versions(
        self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn
    ) -> Applied:
        old, history = self._snapshot, self._identity.mode.history
        assert history is not None
        self._refuse_others(schema)
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
        applied = self._extend(schema, staged, edit, position)
        unused = [file for file in copied if file.name not in self._snapshot.files]
        with suppress(OSError, StoreError):
            old.folder.delete(*with_sidecars(old.folder, unused))
        return replace(applied, rows_deleted=ended)
