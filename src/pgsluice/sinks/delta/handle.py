"""A Delta table that pgsluice reads and writes itself, including its log.

:mod:`pgsluice.sinks.contract` describes the methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.definitions.source_tables import TableComments
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import (
    AddedColumn,
    Applied,
    StagedChanges,
    StagedRows,
    TableHandle,
    TargetContent,
    TargetTable,
)
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.log import columns, commit_marker
from pgsluice.sinks.delta.log.commit import actions_of, commit
from pgsluice.sinks.delta.log.durability import settle_through
from pgsluice.sinks.delta.log.features import definition, has_change_data_feed, refuse_unknown_rules
from pgsluice.sinks.delta.log.layout import refuse_other_partitions
from pgsluice.sinks.delta.log.reading import operations
from pgsluice.sinks.delta.log.snapshot import DeltaSnapshot, content_of
from pgsluice.sinks.delta.upkeep import delete_leftovers, keep_up, log_hours, table_properties
from pgsluice.sinks.identity import CommitMarker, TargetIdentity
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.attempt import attempt
from pgsluice.sinks.lake.copied_rows import (
    altered_rows,
    altered_schema,
    fitting_rows,
    refuse_shared_keys,
)
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.history.merge import merge_of
from pgsluice.sinks.lake.keys.index import KeyIndex
from pgsluice.sinks.lake.merge.key_scan import KeyScan, gone_rows
from pgsluice.sinks.lake.merge.net_merge import FindsKeys, Rewrites, first_rows
from pgsluice.sinks.lake.merge.whole_rows import RowIndex, RowScan
from pgsluice.sinks.lake.snapshot import CLOSED, PREFIX, by_prefix
from pgsluice.sinks.lake.staged_changes import (
    applied_changes,
    discard_changes,
    forget_sidecars,
    joined_edit,
    stage_changes,
)

if TYPE_CHECKING:
    from pgsluice.sinks.delta.sink import DeltaSink


LARGE_BYTES = 8 * 2**20
"""The size of a first copy, in bytes, from which ``merge = "auto"`` merges the table on read: from
here on, a merge of some hundred keys on write takes up to 0.2 s (ADR 0025)."""


class DeltaHandle(TableHandle):
    """A Delta table at one version, or the place for a new one.

    Args:
        sink: the sink, with the path and the options of all tables.
        table: the required definition.
        identity: the origin of its rows, in the name of the position's transaction identifier.
        snapshot: the version. If a table that is merged on read has no deletion vectors yet, the
            next commit enables them.
        way: how changes are merged; ``auto`` only for a new table, whose first copy decides.
    """

    _prefix = PREFIX
    """Of the names of new data files."""

    def __init__(
        self,
        sink: DeltaSink,
        table: TargetTable,
        identity: TargetIdentity,
        snapshot: DeltaSnapshot,
        way: Merge,
    ) -> None:
        self._sink = sink
        self._table = table
        self._identity = identity
        self._snapshot = snapshot
        self._way = way
        self._layout = sink.layout(table.title)
        self._properties = sink.table_properties.get(table.title, {})
        self._index: KeyIndex | None = None
        self._bytes_written = 0

    @property
    def location(self) -> str:
        return self._snapshot.folder.uri

    @property
    def version(self) -> int:
        return self._snapshot.version

    def schema(self) -> pa.Schema | None:
        return self._snapshot.schema if self.version >= 0 else None

    def marker(self) -> CommitMarker | None:
        if self.version >= 0:
            settle_through(self._snapshot.folder, self.version)
        return commit_marker.read_marker(self._snapshot.transaction_version, self._identity)

    def content(self, version: int) -> TargetContent | None:
        if self._snapshot.layout.partition_by != self._layout.partition_by:
            return None  # a copy makes others
        rewrites = not self._is_merged_on_read
        return content_of(self._snapshot.folder, version, self._identity, rewrites)

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
        old = self._snapshot
        schema = pa.schema([old.schema.field(name) for name in columns])
        return altered_rows(old, old.files.values(), schema)

    def refuse_foreign_changes(self) -> None:
        if self._snapshot.commits.has_lost_one:
            commit_marker.refuse_lost_commit(self._table.title, self.location, self.version)
        keeps_rows = self._identity.mode.keeps_rows
        refuse_other_partitions(
            self._snapshot, self._layout, self._table.title, keeps_rows=keeps_rows
        )
        if self._sink.foreign_writes == "park":
            commit_marker.refuse_foreign_changes(self._snapshot, self._table.title, operations)

    def target_types(self, schema: pa.Schema) -> pa.Schema:
        return columns.as_delta(schema, self._table.title)

    def can_stage_load(self) -> bool:
        return True

    @attempt()
    def stage_load(self, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write unreferenced files, and the index of their keys, so that the first batch after the
        copy does not have to build it."""
        schema = self.target_types(self._table.schema)
        index = self._index_with(schema)
        staged = self._stage(schema, rows, index)
        if index is not None and self._way_with([staged]) != "on_read":
            index.drop(staging.staged_files([staged]))
        return staged

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        schema = self.target_types(self._table.schema)
        folder, cache_dir = self._snapshot.folder, self._sink.cache_dir
        refuse_shared_keys(folder, self._table, schema, staged, position, cache_dir)
        gone = self._gone_rows(schema, staged)
        self._way = self._way_with(staged)
        applied = self._replace(schema, [*staged, *gone], position)
        return replace(applied, rows_inserted=sum(part.rows for part in staged))

    def can_keep_deleted(self) -> bool:
        return True

    def _gone_rows(self, schema: pa.Schema, staged: Sequence[StagedRows]) -> list[StagedRows]:
        """Stage the rows that a copy does not have, if the table keeps deleted rows."""
        column, old, key = self._identity.mode.deleted_column, self._snapshot, self._table.key
        marker = None if column is None or self.version < 0 else self.marker()
        if column is None or marker is None or marker.owner != self._identity.owner:
            return []
        types = {field.name: field.type for field in old.schema}
        if not key or any(types.get(name) != schema.field(name).type for name in key):
            return []  # other keys: the rows cannot be compared
        rows = gone_rows(old, staging.staged_files(staged), schema, key, column)
        return [self.stage_rows(schema, rows)]

    def discard_load(self, staged: Sequence[StagedRows]) -> None:
        staging.discard(self._snapshot.folder, staged)

    def stage_rows(self, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        return self._stage(schema, rows)

    def _stage(
        self,
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch],
        index: KeyIndex | None = None,
    ) -> StagedRows:
        self._layout.check(schema, self._table.title)
        copied = fitting_rows(rows, schema, self._table.title)
        prefix, layout = self._prefix, self._layout
        return staging.stage(
            self._snapshot.folder, schema, copied, index, prefix=prefix, layout=layout
        )

    def _way_with(self, staged: Sequence[StagedRows]) -> Merge:
        """How changes are merged into the table if a copy has (at least) these rows.

        Where rows are only added, no file is ever rewritten.
        """
        if self._way != "auto":
            return self._way
        is_large = sum(part.bytes_written for part in staged) >= LARGE_BYTES
        is_changed = bool(self._table.key) or self._table.has_whole_rows
        return "on_read" if is_changed and is_large else "on_write"

    @attempt()
    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        """Add columns without new files if they are NULL in all rows. Otherwise rewrite the live
        rows, one file after the other, so that neighbouring rows stay together. Closed versions of
        a history do not get the value of an added column, which the source did not have at their
        time.
        """
        old, title = self._snapshot, self._table.title
        refuse_unknown_rules(old, title)
        schema = self.target_types(altered_schema(old.schema, added, widened))
        self._layout.check(schema, title)
        edit = Edit()
        for prefix, files in by_prefix(old.files.values()).items():
            is_closed = prefix == CLOSED and self._identity.mode.history is not None
            filled = [] if is_closed else [column for column in added if column.value.is_valid]
            if widened or filled:
                rows = fitting_rows(altered_rows(old, files, schema, filled), schema, title)
                index = None if is_closed else self._index_with(schema)
                edit.new += staging.write_files(
                    old.folder, schema, rows, index, prefix=prefix, layout=self._layout
                )
                edit.gone += [file.name for file in files]
        operation = "REPLACE COLUMNS" if edit.gone else "ADD COLUMNS"
        self._commit(operation, self._definition(schema), edit, position)
        return Applied(version=self.version, bytes_written=self._bytes_written)

    def comments(self) -> TableComments | None:
        return columns.comments_of(self._snapshot.metadata)

    @attempt()
    def comment(self, comments: TableComments, position: Lsn) -> Applied:
        metadata = dict(self._snapshot.metadata)
        metadata["schemaString"] = columns.with_comments(metadata["schemaString"], comments.columns)
        if comments.table:
            metadata["description"] = comments.table
        self._commit("UPDATE TABLE METADATA", [{"metaData": metadata}], Edit(), position)
        return Applied(version=self.version)

    @attempt()
    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        if self.version < 0:
            return self._create(changes, position)
        began = time.monotonic()
        refuse_unknown_rules(self._snapshot, self._table.title)
        index, rewrites = self._keys_of(changes), self._rewrites()
        merge = merge_of(changes, self._snapshot, index, self._table.title, rewrites=rewrites)
        merged = merge.apply(changes, searches_new=self._searches_new)

        def metrics() -> dict[str, int]:
            return {
                "execution_time_ms": round(1000 * (time.monotonic() - began)),
                "num_source_rows": len(changes.rows) + len(changes.deletes),
                "num_target_rows_copied": merged.rows_copied,
            }

        self._commit("MERGE", self._allowed(), merged.edit, position, metrics)
        return Applied(self.version, *merged.counts, self._bytes_written)

    def can_change_whole_rows(self) -> bool:
        return True

    def can_stage_changes(self) -> bool:
        return True

    @attempt()
    def stage_changes(self, pieces: Iterable[NetChanges]) -> StagedChanges:
        refuse_unknown_rules(self._snapshot, self._table.title)
        staged = stage_changes(
            self._snapshot,
            self._index_of,
            pieces,
            self._table.title,
            searches_new=self._searches_new,
            keeps_vectors=self._is_merged_on_read,
        )
        self._snapshot.folder.settle()
        return staged

    def whole_attempt(
        self, delete: Callable[[], object] | None = None
    ) -> AbstractContextManager[None]:
        return attempt(delete)

    def discard_changes(self, staged: Sequence[StagedChanges]) -> None:
        discard_changes(self._snapshot.folder, staged)

    @attempt()
    def commit_changes(self, staged: Sequence[StagedChanges], position: Lsn) -> Applied:
        refuse_unknown_rules(self._snapshot, self._table.title)
        edit = joined_edit(self._snapshot, staged, keeps_vectors=self._is_merged_on_read)
        self._commit("MERGE", self._allowed(), edit, position)
        self._index = forget_sidecars(self._snapshot, self._sink.cache_dir, staged)
        return applied_changes(self.version, staged, self._bytes_written)

    @attempt()
    def maintain(self, keep_versions: Iterable[int]) -> bool:
        if (before := self.version) < 0:
            return False
        self._snapshot = keep_up(
            self._snapshot,
            keep_versions,
            self._sink,
            bytes_written=self._bytes_written,
            keeps_vectors=self._is_merged_on_read,
            index=self._index if self._is_merged_on_read else None,
        )
        is_done = self.version > before
        if is_done and self._index is not None:
            self._index.forget(self._snapshot.files)
        return is_done

    def delete_leftovers(self, written_before: float) -> None:
        delete_leftovers(self._snapshot, written_before)

    @property
    def _is_merged_on_read(self) -> bool:
        return self._way == "on_read"

    def _rewrites(self) -> Rewrites:
        if not self._is_merged_on_read:
            return "all"
        # In a change data feed, a rewritten row would be one that is deleted and inserted.
        return "nothing" if has_change_data_feed(self._snapshot) else "large"

    @property
    def _searches_new(self) -> bool:
        return self._sink.foreign_writes != "park"

    def _create(self, net: NetChanges, position: Lsn) -> Applied:
        rows, skipped = first_rows(net, self.target_types(net.schema))
        part = self._stage(rows.schema, rows.to_batches())
        return replace(self._replace(rows.schema, [part], position), rows_skipped=skipped)

    def _replace(self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Make staged files the whole content."""
        refuse_unknown_rules(self._snapshot, self._table.title)
        if self._way == "auto":
            self._way = "on_write"  # made from changes, so without a copy
        edit = Edit([*self._snapshot.files], new=staging.staged_files(staged))
        self._commit("WRITE", self._definition(schema), edit, position)
        return Applied(
            version=self.version,
            rows_inserted=sum(part.rows for part in staged),
            bytes_written=self._bytes_written,
        )

    def _allowed(self) -> list[dict[str, Any]]:
        """The actions that enable deletion vectors, if the table needs them and has none yet, and
        that change the order of rows in new files, and properties."""
        has_vectors = self._snapshot.has_vectors or not self._is_merged_on_read
        has_properties = self._properties.items() <= self._snapshot.configuration.items()
        if has_vectors and has_properties and self._snapshot.layout == self._layout:
            return []
        self._layout.check(self._snapshot.schema, self._table.title)
        return self._definition(None)

    def _definition(self, schema: pa.Schema | None) -> list[dict[str, Any]]:
        return definition(
            self._snapshot,
            schema=schema,
            layout=self._layout,
            properties=table_properties(log_hours(self._sink)),
            configured=self._properties,
            allows_vectors=self._is_merged_on_read,
        )

    def _commit(
        self,
        operation: str,
        definition: Sequence[dict[str, Any]],
        edit: Edit,
        position: Lsn,
        metrics: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Create the next version by an edit, and actions that change the table's definition.

        Args:
            metrics: returns those of a merge, under deltalake's names, when its files are written.
        """
        actions, self._bytes_written = actions_of(self._snapshot, edit)
        information: dict[str, Any] = {**commit_marker.information(self._identity, position)}
        if metrics is not None:
            information["operationMetrics"] = metrics()
        self._snapshot = commit(
            self._snapshot,
            operation,
            [*definition, *actions],
            transactions=commit_marker.transactions(self._identity, position, self.version + 1),
            information=information,
        )

    def _keys_of(self, net: NetChanges) -> FindsKeys:
        """Finds the rows of changes. If a table that is merged on write gets new files with a
        batch, an index of its rows would be used only once."""
        keeps_files = not net.only_new and not len(net.deletes) and bool(net.inserted.all())
        if self._is_merged_on_read or keeps_files:
            self._index = self._index_of(net)
            return self._index
        whole, schema = net.whole_rows, self._snapshot.schema
        kind, names = (KeyScan, net.key) if whole is None else (RowScan, whole.columns)
        return kind(self._snapshot.folder, pa.schema([schema.field(name) for name in names]))

    def _index_of(self, net: NetChanges) -> KeyIndex:
        whole, shares = net.whole_rows, self._is_merged_on_read
        kind, names = (KeyIndex, net.key) if whole is None else (RowIndex, whole.columns)
        return kind.of(self._snapshot, self._sink.cache_dir, names, shares=shares)

    def _index_with(self, schema: pa.Schema) -> KeyIndex | None:
        """What finds rows when the table has these columns; None: nothing will."""
        key = {*self._table.key}
        if self._way == "on_write":
            return None
        if self._table.has_whole_rows:
            return RowIndex(self._sink.cache_dir, self._snapshot.folder, schema)
        if not key or not key <= {*schema.names}:
            return None
        keys = pa.schema([schema.field(name) for name in self._table.key])
        return KeyIndex(self._sink.cache_dir, self._snapshot.folder, keys)
