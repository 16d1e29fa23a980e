"""A Delta table with rules of others: constraints, generated columns, a change data feed.

deltalake enforces these rules in its MERGE. But MERGE rewrites files and reads the keys of the
whole table, so all other tables are merged by our own commits (:mod:`pgsluice.sinks.delta.handle`).

Each write is for one version and without deltalake's retries, so it fails if another commit created
that version first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from pyroaring import BitMap

from pgsluice.changes.net import NetChanges
from pgsluice.disk import disk_trouble
from pgsluice.errors import PgsluiceError, TableError, TargetUnreachable
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, Overtaken, StagedRows
from pgsluice.sinks.delta import upkeep
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.log import columns, commit_marker
from pgsluice.sinks.delta.log.commit import as_text
from pgsluice.sinks.delta.log.durability import settle_through
from pgsluice.sinks.delta.log.features import has_row_rules, keeps_columns
from pgsluice.sinks.delta.log.reading import newest_snapshot, newest_version
from pgsluice.sinks.delta.ruled.merge import (
    merge,
    read_and_resolve,
    refuse_shared,
    writer_properties,
)
from pgsluice.sinks.joined_columns import another_target, with_all_columns
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.copied_rows import altered_rows, altered_schema, fitting_rows
from pgsluice.sinks.lake.data_files import numbered_rows
from pgsluice.sinks.lake.edit import bytes_of
from pgsluice.sinks.lake.snapshot import NewFile
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.sinks.opened_table import target_trouble
from pgsluice.stores.contract import Folder

MANY_SMALL_FILES = 8

_STORE = re.compile(
    r"Generic (?!DeltaTable\b)\w+ error|lacked (the necessary privileges|valid authentication)"
)
_UNSUPPORTED = re.compile(
    r"Unsupported table features|table is append-only|is not supported for write operation"
)
_MISSING = "not found"
_NUMBER = re.compile(r"\(os error (\d+)\)")
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[\s↳]+")


class RuledHandle(DeltaHandle):
    """An existing table at one version, whose rules deltalake enforces."""

    _delta: DeltaTable | None = None

    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        """Add columns without new files if they are NULL in all rows. Otherwise rewrite the table,
        to files that no version refers to before the commit.
        """
        delta, title = self._opened(), self._table.title
        if not widened and not any(column.value.is_valid for column in added):
            new = columns.as_delta(pa.schema([column.field for column in added]), title)
            fields, commit = columns.delta_schema(new).fields, self._marked(position)
            self._write(lambda: delta.alter.add_columns(fields, commit_properties=commit))
            self._write(lambda: columns.list_invariants(delta))
            return Applied(version=self.version)
        old = self._snapshot
        schema = self.target_types(altered_schema(old.schema, added, widened))
        rows = fitting_rows(altered_rows(old, old.files.values(), schema, added), schema, title)
        staged = staging.stage(old.folder, schema, rows)
        return replace(self._replace(schema, [staged], position), rows_inserted=0)

    def comments(self) -> None:
        """Others have given the table its definition, which deltalake does not let us replace."""

    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        net, before = changes, self._snapshot.files
        lacking = 0
        if net.unproved is not None:
            refuse_shared(self._snapshot, net.unproved, self._table.title)
        if len(net.rekeyed):
            net, lacking = read_and_resolve(self._snapshot, net)
        delta = self._opened()
        metrics: dict[str, Any] = {}
        self._write(lambda: metrics.update(self._commit_changes(delta, net, position)))
        inserted = int(metrics.get("num_target_rows_inserted", 0))
        updated = int(metrics.get("num_target_rows_updated", 0))
        deleted = int(metrics.get("num_target_rows_deleted", 0))
        lacking += len(net.rows) - inserted - updated + max(0, net.expected_deletes - deleted)
        new = (file for name, file in self._snapshot.files.items() if name not in before)
        self._bytes_written = bytes_of(new)
        return Applied(
            version=self.version,
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
            rows_skipped=net.skipped + lacking,
            bytes_written=self._bytes_written,
        )

    def can_change_whole_rows(self) -> bool:
        return False

    def can_stage_changes(self) -> bool:
        return False

    def can_keep_deleted(self) -> bool:
        return False

    def maintain(self, keep_versions: Iterable[int]) -> bool:
        """Join small files by deltalake, and delete unneeded ones; nothing, if another commit comes
        first."""
        if not upkeep.is_due(self._snapshot, self._bytes_written):
            return False
        sizes = [file.size for file in self._snapshot.files.values()]
        with suppress(Overtaken):
            if sum(size < TARGET_FILE_BYTES // 2 for size in sizes) >= MANY_SMALL_FILES:
                self._write(self._compact)
            upkeep.write_checkpoint(self._snapshot, self._sink)
            upkeep.delete_files(self._snapshot, keep_versions, self._sink.history_retention_s)
        return True

    def _compact(self) -> bool:
        delta = self._opened()
        metrics = delta.optimize.compact(
            target_size=TARGET_FILE_BYTES,
            writer_properties=writer_properties(columns.existing_schema(delta)),
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        return bool(metrics["numFilesAdded"])

    def _opened(self) -> DeltaTable:
        """The table at the handle's version."""
        folder = self._snapshot.folder
        options = folder.storage_options() or None
        try:
            if self._delta is None:
                self._delta = DeltaTable(folder.uri, storage_options=options)
            if self._delta.version() != self.version:
                self._delta.load_as_version(self.version)
        except (DeltaError, OSError) as error:
            raise _store_error(error, self._table.title, folder.uri) or error from None
        return self._delta

    def _commit_changes(self, delta: DeltaTable, net: NetChanges, position: Lsn) -> dict[str, Any]:
        commit = self._marked(position)
        if net.is_empty:
            return self._commit_position(delta, commit)
        # If others may change the data, only a MERGE guarantees that no key exists twice. It reads
        # every key of the table.
        may_append = not net.key or (net.only_new and self._sink.foreign_writes == "park")
        if net.truncated or may_append:
            mode: Literal["overwrite", "append"] = "overwrite" if net.truncated else "append"
            wanted = columns.written_schema(delta, net.rows.schema.names)
            rows = columns.as_stored(with_all_columns(net.rows, wanted))
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
        """Commit only the new position, so that target and record are the same."""
        delta.create_write_transaction([], "append", delta.schema(), commit_properties=commit)
        return {}

    def _replace(self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Make staged files the whole content. If rows have to fulfil rules, deltalake writes them
        again, since it checks only rows that it writes."""
        files, old = staging.staged_files(staged), self._snapshot
        is_same = keeps_columns(old, schema, self._table.title)
        feature = self._opened()
        self._write(lambda: columns.list_features(feature, schema))
        delta, commit = self._opened(), self._marked(position)
        delta_schema = columns.delta_schema(schema, old.metadata)
        if has_row_rules(old):
            stored = pa.schema(delta_schema.to_arrow())
            rows = _stored_rows(old.folder, files, schema, stored)
            self._write(
                lambda: write_deltalake(
                    delta,
                    pa.RecordBatchReader.from_batches(stored, rows),
                    mode="overwrite",
                    schema_mode=None if is_same else "overwrite",
                    target_file_size=TARGET_FILE_BYTES,
                    writer_properties=writer_properties(stored),
                    commit_properties=commit,
                )
            )
            staging.discard(old.folder, staged)
            self._bytes_written = bytes_of(self._snapshot.files.values())
        else:
            actions = _added(files)
            self._write(
                lambda: delta.create_write_transaction(
                    [*actions], "overwrite", delta_schema, commit_properties=commit
                )
            )
            self._bytes_written = bytes_of(files)
        count = sum(part.rows for part in staged)
        return Applied(version=self.version, rows_inserted=count, bytes_written=self._bytes_written)

    def _write(self, write: Callable[[], object]) -> None:
        """Run one commit, and raise Overtaken if another one came first.

        Args:
            write: returns False if there was nothing to commit.

        Raises:
            Overtaken: another commit created this version.
        """
        folder, version = self._snapshot.folder, self.version + 1
        try:
            is_made = write() is not False
        except (DeltaError, OSError, ValueError) as error:
            is_race = isinstance(error, CommitFailedError) and not _UNSUPPORTED.search(str(error))
            if is_race or newest_version(folder) >= version:
                raise Overtaken(
                    f"another commit came first in {self._table.title}", table=self._table.title
                ) from None
            raise _without_rows(error, self._table.title, folder.uri) from None
        if not is_made:
            return
        settle_through(folder, version)
        made = newest_snapshot(folder)
        assert made is not None
        self._snapshot = made

    def _marked(self, position: Lsn) -> CommitProperties:
        """The properties that mark the next commit, which creates the next version or fails."""
        marks = commit_marker.transactions(self._identity, position, self.version + 1)
        return CommitProperties(
            app_transactions=[Transaction(name, number) for name, number in marks.items()],
            custom_metadata=commit_marker.information(self._identity, position),
            max_commit_retries=0,
        )


def _stored_rows(
    folder: Folder, files: Sequence[NewFile], schema: pa.Schema, stored: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """All rows of files in these columns, in the types that deltalake takes."""
    for file in files:
        for _, rows in numbered_rows(folder, file, BitMap(), schema):
            yield from columns.as_stored(rows).cast(stored).to_batches()


def _added(files: Sequence[NewFile]) -> list[AddAction]:
    now_ms = int(time.time() * 1000)
    return [
        AddAction(
            path=file.name,
            size=file.size,
            partition_values={},
            modification_time=now_ms,
            data_change=True,
            stats=as_text(file.statistics()),
        )
        for file in files
    ]


def _without_rows(error: Exception, table: str, uri: str) -> Exception:
    """An error of deltalake without values of rows that its text may have."""
    if (unreachable := _store_error(error, table, uri)) is not None:
        return unreachable
    text = str(error)
    if "failed validation check" in text or "Invalid data found" in text:
        return TableError(
            f"rows of table {table} have NULL in a NOT NULL column of the Delta table, or violate"
            " one of its constraints",
            hint="remove the constraint from the Delta table; then copy the table: "
            f"{copy_again(table)}. The copy allows NULL in all columns but the key's",
            table=table,
        )
    if _UNSUPPORTED.search(text):
        return TableError(
            f"deltalake does not write the Delta table at {uri}: {text}",
            hint=f"remove this rule from the Delta table, and copy the table: {copy_again(table)}; "
            f"or {another_target(table)}",
            table=table,
        )
    if "\n" in text:
        return PgsluiceError(f"writing {table} failed: {text.splitlines()[0]}", table=table)
    return error


def _store_error(error: Exception, table: str, place: str) -> TargetUnreachable | None:
    """The error for a temporary failure of the store; None if it is an error of the table, as a
    missing file is.

    deltalake raises OSError or DeltaError for both. The errors of stores are those of the Rust
    crate ``object_store``: its texts begin with "Generic" and name the store, such as
    LocalFileSystem or S3.
    """
    text = str(error)
    number = _NUMBER.search(text)
    if number is not None and (trouble := disk_trouble(OSError(int(number[1]), ""), place)):
        return target_trouble(trouble, table)
    is_of_store = isinstance(error, OSError) or _STORE.search(text) is not None
    if not is_of_store or _MISSING in text:
        return None
    lines = [_DECORATION.sub(" ", line).strip() for line in text.splitlines()]
    # Of a chain of causes the first says what was done, and the last why it failed.
    reasons = dict.fromkeys(line for line in (lines[0], lines[-1]) if line)
    return TargetUnreachable(
        f"the store of the target of table {table} fails: {': '.join(reasons)}",
        hint="check the store and the network to it; nothing else to do: pgsluice retries until "
        "the store works",
        table=table,
    )
