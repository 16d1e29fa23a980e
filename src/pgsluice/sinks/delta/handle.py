"""A Delta table that deltalake writes: one in an object store, or with rules that only it knows.

:mod:`pgsluice.sinks.contract` says what each method owes. All other tables: :mod:`.local_handle`.

Each write names the version that it makes and lets deltalake not retry it, so it fails when
another commit made that version first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import resolve_rekeyed
from pgsluice.errors import PgsluiceError, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import (
    AddedColumn,
    Applied,
    CommitMarker,
    Overtaken,
    StagedRows,
    TableHandle,
    TargetContent,
    TargetIdentity,
    TargetTable,
)
from pgsluice.sinks.delta import columns, commit_marker, maintenance, staging
from pgsluice.sinks.delta.copied_rows import CopiedRows
from pgsluice.sinks.delta.durability import settle_through
from pgsluice.sinks.delta.merge import merge
from pgsluice.sinks.delta.rekeyed_rows import read_and_resolve, refuse_shared
from pgsluice.sinks.delta.shared_keys import refuse_shared_keys
from pgsluice.sinks.delta.statistics import writer_properties
from pgsluice.sinks.delta.store_errors import store_error
from pgsluice.stores.contract import Folder

if TYPE_CHECKING:
    from pgsluice.sinks.delta.sink import DeltaSink


class DeltaHandle(TableHandle):
    """A Delta table at one version, or the place where deltalake will make one.

    Args:
        sink: has the path, and the options of all tables.
        table: what it has to be.
        identity: whose rows it holds; names the transaction identifier of the position.
    """

    def __init__(self, sink: DeltaSink, table: TargetTable, identity: TargetIdentity) -> None:
        self._sink = sink
        self._uri = sink.location(table.namespace, table.name)
        self._table = table
        self._identity = identity
        history_s = sink.history_retention_s
        self._log_hours = maintenance.log_hours(sink.cut_retention_s, history_s)
        self._history_hours = maintenance.whole_hours(history_s)
        self._folder = sink.folder(table.namespace, table.name)
        self._storage_options = self._folder.storage_options() or None
        self._bytes_written = 0
        self._delta = self._open()

    @property
    def location(self) -> str:
        return self._uri

    @property
    def version(self) -> int:
        return -1 if self._delta is None else self._delta.version()

    def schema(self) -> pa.Schema | None:
        return None if self._delta is None else columns.existing_schema(self._delta)

    def marker(self) -> CommitMarker | None:
        if self._delta is None:
            return None
        self._sync()
        return commit_marker.read_marker(self._delta, self._identity)

    def content(self, version: int) -> TargetContent | None:
        return content_of(self._folder, version, self._identity)

    def refuse_foreign_changes(self) -> None:
        if self._delta is not None and self._sink.foreign_writes == "park":
            commit_marker.check_foreign_writes(self._delta, self._table.title)

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        if not self._table.is_key_proved:  # its keys are read back before the commit
            return self.commit_load([self.stage_load(rows)], position)
        schema = self.target_types(self._table.schema)
        copied = CopiedRows(rows, schema, self._table.title)

        def write() -> None:
            write_deltalake(
                self._uri if self._delta is None else self._delta,
                pa.RecordBatchReader.from_batches(schema, copied),
                mode="error" if self._delta is None else "overwrite",
                schema_mode=None if self._delta is None else "overwrite",
                configuration=self._configuration() if self._delta is None else None,
                storage_options=self._storage_options,
                writer_properties=writer_properties(schema),
                commit_properties=self._commit(position),
            )

        try:
            self._write(write)
        except Exception:
            if copied.error is not None:
                raise copied.error from None
            raise
        return self._replaced(copied.rows)

    def can_stage_load(self) -> bool:
        return True

    def stage_load(self, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write files that no version refers to."""
        schema = self.target_types(self._table.schema)
        copied = CopiedRows(rows, schema, self._table.title)
        return staging.stage(self._folder, schema, copied)

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        schema = self.target_types(self._table.schema)
        refuse_shared_keys(
            self._folder, self._table, schema, staged, position, self._sink.cache_dir
        )
        self._commit_staged(schema, staged, position)
        return self._replaced(sum(part.rows for part in staged))

    def discard_load(self, staged: Sequence[StagedRows]) -> None:
        staging.discard(self._folder, staged)

    def target_types(self, schema: pa.Schema) -> pa.Schema:
        return columns.as_delta(schema, self._table.title)

    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        """Columns that are NULL in all rows need no file. Otherwise the table is written anew from
        itself, in files that no version refers to before the commit.
        """
        delta, title = self._delta, self._table.title
        assert delta is not None
        if not widened and not any(column.value.is_valid for column in added):
            fields = [column.field for column in added]
            commit = self._commit(position)
            self._write(lambda: columns.add_empty_columns(delta, fields, title, commit))
            self._write(lambda: columns.list_invariants(delta))
            return Applied(version=delta.version())
        schema = self.target_types(
            columns.altered_schema(columns.existing_schema(delta), added, widened)
        )
        rows = CopiedRows(columns.altered_rows(delta, schema, added), schema, title)
        staged = staging.stage(self._folder, schema, rows)
        self._commit_staged(schema, [staged], position)
        return replace(self._replaced(0), bytes_written=staged.bytes_written)

    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        if self._delta is None:
            applied = self._create(changes, position)
        else:
            applied = self._change(self._delta, changes, position)
        self._bytes_written = applied.bytes_written
        return applied

    def maintain(self, keep_versions: Iterable[int]) -> bool:
        delta = self._delta
        if delta is None:
            return False
        commits = delta.version() - (delta.transaction_version(maintenance.MAINTAINED) or 0)
        sizes = maintenance.live_files(delta).values()
        if not maintenance.is_due(commits, self._bytes_written, sizes):
            return False
        maintenance.keep_log(delta, self._log_hours)
        maintenance.maintain(delta, self._folder, keep_versions, history_hours=self._history_hours)
        return True

    def _change(self, delta: DeltaTable, net: NetChanges, position: Lsn) -> Applied:
        self._write(lambda: columns.list_invariants(delta))
        before = maintenance.live_files(delta)
        lacking = 0
        if net.unproved is not None:
            refuse_shared(delta, net.unproved, self._table.title)
        if len(net.rekeyed):
            net, lacking = read_and_resolve(delta, net)
        metrics: dict[str, Any] = {}
        self._write(lambda: metrics.update(self._commit_changes(delta, net, position)))
        inserted = int(metrics.get("num_target_rows_inserted", 0))
        updated = int(metrics.get("num_target_rows_updated", 0))
        deleted = int(metrics.get("num_target_rows_deleted", 0))
        lacking += len(net.rows) - inserted - updated + max(0, net.expected_deletes - deleted)
        after = maintenance.live_files(delta)
        return Applied(
            version=delta.version(),
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
            rows_skipped=net.skipped + lacking,
            bytes_written=sum(size for path, size in after.items() if path not in before),
        )

    def _commit_staged(
        self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn
    ) -> None:
        if self._delta is not None:
            columns.list_timestamp_feature(self._delta, schema)
        self._write(
            lambda: staging.commit(
                self._uri if self._delta is None else self._delta,
                schema,
                staged,
                configuration=self._configuration(),
                storage_options=self._storage_options,
                commit_properties=self._commit(position),
            )
        )

    def _commit_changes(self, delta: DeltaTable, net: NetChanges, position: Lsn) -> dict[str, Any]:
        commit = self._commit(position)
        if net.is_empty:
            return self._commit_position(delta, commit)
        if net.truncated or self._may_append(net):
            mode: Literal["overwrite", "append"] = "overwrite" if net.truncated else "append"
            rows = columns.with_all_columns(net.rows, columns.existing_schema(delta))
            write_deltalake(
                delta,
                rows,
                mode=mode,
                writer_properties=writer_properties(rows.schema),
                commit_properties=commit,
            )
            return {"num_target_rows_inserted": len(rows)}
        before = delta.version()
        metrics = merge(delta, net, commit)
        if delta.version() == before:  # deltalake commits nothing where no row matches
            return self._commit_position(delta, commit)
        return metrics

    def _commit_position(self, delta: DeltaTable, commit: CommitProperties) -> dict[str, Any]:
        """Move the position alone, so that target and record agree."""
        delta.create_write_transaction([], "append", delta.schema(), commit_properties=commit)
        delta.update_incremental()
        return {}

    def _may_append(self, net: NetChanges) -> bool:
        """Whether rows can be added without a MERGE, which would read every key of the table.

        Where others may change the data, only a MERGE makes sure that no key comes twice.
        """
        return not net.key or (net.only_new and self._sink.foreign_writes == "park")

    def _create(self, net: NetChanges, position: Lsn) -> Applied:
        """Make the table from changes: it was not to be copied, so it lacks all other rows."""
        rows, skipped = first_rows(net, self.target_types(net.schema))
        schema = rows.schema
        self._write(
            lambda: write_deltalake(
                self._uri,
                rows,
                mode="error",
                configuration=self._configuration(),
                storage_options=self._storage_options,
                writer_properties=writer_properties(schema),
                commit_properties=self._commit(position),
            )
        )
        return replace(self._replaced(len(rows)), rows_skipped=skipped)

    def _replaced(self, rows: int) -> Applied:
        """Open the new content."""
        self._delta = delta = self._open()
        assert delta is not None
        self._sync()
        with suppress(CommitFailedError):  # another commit came first; the next apply does it
            columns.list_invariants(delta)
        size = sum(maintenance.live_files(delta).values())
        return Applied(version=delta.version(), rows_inserted=rows, bytes_written=size)

    def _write(self, write: Callable[[], object]) -> None:
        """Run one commit, and say so when another one came first.

        Raises:
            Overtaken: another commit made the version that this one was to make.
        """
        version = self.version + 1
        try:
            write()
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, CommitFailedError) or self._newest_version() >= version:
                raise Overtaken(
                    f"another commit came first in {self._table.title}", table=self._table.title
                ) from None
            raise _without_rows(error, self._table.title, self._uri) from None
        self._sync()

    def _sync(self) -> None:
        """Have the version on the disk before its position counts."""
        if self.version >= 0:
            settle_through(self._folder, self.version)

    def _newest_version(self) -> int:
        newest = self._open()
        return -1 if newest is None else newest.version()

    def _commit(self, position: Lsn) -> CommitProperties:
        """What marks the next commit; it makes the next version, or fails."""
        return commit_marker.commit_properties(self._identity, position, self.version + 1)

    def _configuration(self) -> dict[str, str | None]:
        return maintenance.table_properties(self._log_hours)

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri, storage_options=self._storage_options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise store_error(error, self._table.title, self._uri) or error from None


def first_rows(net: NetChanges, types: pa.Schema) -> tuple[pa.Table, int]:
    """The rows of a table that begins with changes, and how many changes are skipped: the table
    was not to be copied, so it lacks all other rows.

    Args:
        types: the columns in the target's types.
    """
    net, skipped = resolve_rekeyed(net, net.rows.slice(0, 0))
    inserted = net.rows.filter(pa.array(net.inserted))
    skipped += net.skipped + len(net.rows) - len(inserted) + net.expected_deletes
    schema = pa.schema([field.with_nullable(field.name not in net.key) for field in types])
    return columns.with_all_columns(inserted, schema), skipped


def content_of(folder: Folder, version: int, identity: TargetIdentity) -> TargetContent | None:
    """A table at a version; None: there is none, or it cannot be read any more."""
    try:
        options = folder.storage_options() or None
        delta = DeltaTable(folder.uri, version=version, storage_options=options)
    except DeltaError:
        return None
    schema = columns.existing_schema(delta)
    marker = commit_marker.read_marker(delta, identity)
    return TargetContent(marker, schema, columns.rows(delta, schema))


def _without_rows(error: Exception, table: str, uri: str) -> Exception:
    """An error of deltalake without the rows that its text may show."""
    if (unreachable := store_error(error, table, uri)) is not None:
        return unreachable
    text = str(error)
    if "failed validation check" in text or "Invalid data found" in text:
        return TableError(
            f"rows for {table} have NULL in a column that may not be NULL, or break a constraint of"
            " the Delta table",
            hint=f"take the constraint from it, or copy the table again: {copy_again(table)}",
            table=table,
        )
    if "\n" in text:
        return PgsluiceError(f"writing {table} failed: {text.splitlines()[0]}", table=table)
    return error
