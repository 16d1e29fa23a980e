"""One Delta table: opened, asked for its position, loaded, changed, maintained.

How a batch is applied exactly once (contracts, section 10): transaction identifiers alone
fence only commits that start from the same version; a fresh handle with an older position
would succeed again. So the table is opened once, the position is read from that handle, the
write goes through the same handle, and deltalake may not retry it by itself. When another
commit came between, everything starts again from the open.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pgsluice.changes.net import NetChanges
from pgsluice.errors import PgsluiceError, TableError
from pgsluice.sinks.contract import Applied, Position, TargetTable
from pgsluice.sinks.delta import columns, stamp, upkeep
from pgsluice.sinks.delta.merge import merge, no_source
from pgsluice.sinks.delta.moved import fill_moved

ATTEMPTS = 10


@dataclass(slots=True)
class DeltaTableWriter:
    """A table as one task sees it; fulfils the sink contract's TableWriter."""

    uri: str
    table: TargetTable
    identity: Position
    foreign_writes: Literal["park", "allow"] = "park"
    cut_retention_s: float = 600
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _handle: DeltaTable | None = field(default=None, init=False, repr=False)
    _start: Position | None = field(default=None, init=False, repr=False)
    _is_started: bool = field(default=False, init=False, repr=False)
    _bytes_written: int = field(default=0, init=False, repr=False)

    @property
    def title(self) -> str:
        """``schema.table``, for messages."""
        return f"{self.table.namespace}.{self.table.name}"

    def position(self) -> Position | None:
        """Where the table is; None where there is no table yet.

        Raises:
            TableError: the table is not ours, or others changed its data.
        """
        handle = self._opened()
        at = self._position(handle)
        self._start, self._is_started = at, True
        return at

    def version(self) -> int:
        """The table's version as it is open here; -1 where there is no table yet."""
        handle = self._opened()
        return -1 if handle is None else handle.version()

    def schema(self) -> pa.Schema | None:
        """The table's columns; None where there is no table yet."""
        handle = self._opened()
        return None if handle is None else columns.existing_schema(handle)

    def load(self, rows: Iterable[pa.RecordBatch], position: Position) -> Applied:
        """Replace the content by a copy, in one commit with its position. Rows stream.

        Raises:
            TableError: there is a table that is not ours, or a column has no Delta type.
            PgsluiceError: another commit came between: take the copy again.
        """
        handle = self._reopened()
        if handle is not None and not self._takes_over(handle):
            at = stamp.read_position(handle, self.identity, self.title)
            if _is_past(at, position):
                return _skipped(handle, at)
        schema = columns.as_delta(self.table.schema, self.title)
        counter = _Incoming(rows, schema, self.title)
        version = 0 if handle is None else handle.version() + 1
        try:
            write_deltalake(
                self.uri if handle is None else handle,
                pa.RecordBatchReader.from_batches(schema, counter),
                mode="error" if handle is None else "overwrite",
                schema_mode=None if handle is None else "overwrite",
                configuration=self._properties() if handle is None else None,
                storage_options=dict(self.storage_options) or None,
                commit_properties=stamp.commit_properties(position, version),
            )
        except (DeltaError, OSError, ValueError) as error:
            self._handle = None
            if counter.error is not None:
                raise counter.error from None
            if not self._was_overtaken(version, error):
                raise _readable(error, self.title) from None
            handle = self._reopened()
            assert handle is not None
            at = stamp.read_position(handle, self.identity, self.title)
            if _is_past(at, position):
                return _skipped(handle, at)
            raise PgsluiceError(
                f"another commit came while {self.title} was copied", hint="take the copy again"
            ) from None
        handle = self._reopened()
        assert handle is not None
        with suppress(CommitFailedError):  # whoever was quicker; the next apply sees to it
            columns.list_invariants(handle)
        sizes = upkeep.live_files(handle)
        return Applied(
            version=handle.version(),
            rows_inserted=counter.rows,
            bytes_written=sum(sizes.values()),
        )

    def apply(self, changes: NetChanges, position: Position) -> Applied:
        """Apply net changes that start where the table is, in one commit.

        Raises:
            TableError: the table is not ours, was changed by others, or the changes do not
                fit it.
            PgsluiceError: the table moved under us to a position before ``position``: the
                changes have to be made anew from there.
        """
        for attempt in range(ATTEMPTS):
            handle = self._opened()
            at = self._position(handle)
            if not self._is_started:
                self._start, self._is_started = at, True
            if at is not None and _is_past(at, position):
                assert handle is not None
                return _skipped(handle, at)
            if at != self._start or (at is not None and at.copy_number != position.copy_number):
                raise PgsluiceError(
                    f"the target of {self.title} is not where the changes start", hint="try again"
                )
            version = 0 if handle is None else handle.version() + 1
            try:
                applied = self._apply_once(handle, changes, position)
                self._bytes_written = applied.bytes_written
                return applied
            except (DeltaError, OSError, ValueError) as error:
                self._handle = None
                if not self._was_overtaken(version, error):
                    raise _readable(error, self.title) from None
            # Others' OPTIMIZE, or another attempt of this very task: look again.
            time.sleep(random.uniform(0, 0.02 * 2**attempt))  # noqa: S311 - only to part rivals
        raise PgsluiceError(
            f"{ATTEMPTS} times in a row another commit came before ours in {self.title}",
            hint="let other writers of this table pause",
        )

    def maintain(self, keep_versions: Iterable[int]) -> None:
        """Compact and vacuum when enough has been written since the last time.

        Args:
            keep_versions: versions that readers rely on; those that are gone are left out.
        """
        handle = self._opened()
        if handle is None or not upkeep.is_due(handle, self._bytes_written):
            return
        upkeep.keep_up(handle, keep_versions, self.storage_options)
        self._handle = None

    def _takes_over(self, handle: DeltaTable) -> bool:
        """Whether the table is another's, and the copy may have it."""
        found = stamp.read_stamp(handle)
        if found is None or found.owner == stamp.owner_number(self.identity):
            return False
        return self.table.adopts or found.owner in {
            stamp.owner_number(replace(self.identity, relation_oid=oid))
            for oid in self.table.replaces
        }

    def _properties(self) -> dict[str, str | None]:
        return upkeep.table_properties(self.cut_retention_s)

    def _opened(self) -> DeltaTable | None:
        return self._handle if self._handle is not None else self._reopened()

    def _reopened(self) -> DeltaTable | None:
        try:
            self._handle = DeltaTable(self.uri, storage_options=dict(self.storage_options) or None)
        except TableNotFoundError:
            self._handle = None
        return self._handle

    def _position(self, handle: DeltaTable | None) -> Position | None:
        if handle is None:
            return None
        at = stamp.read_position(handle, self.identity, self.title)
        if self.foreign_writes == "park":
            stamp.check_foreign_writes(handle, self.title)
        return at

    def _was_overtaken(self, version: int, error: Exception) -> bool:
        """Whether a write failed because someone else made the version that it was to make."""
        if isinstance(error, CommitFailedError):
            return True
        handle = self._reopened()
        return handle is not None and handle.version() >= version

    def _apply_once(
        self, handle: DeltaTable | None, net: NetChanges, position: Position
    ) -> Applied:
        schema = columns.as_delta(net.schema, self.title)
        if handle is None:
            return self._create(net, schema, position)
        added = columns.added_columns(
            columns.existing_schema(handle), schema, net.backfilled, net.key, self.title
        )
        if added:
            handle.alter.add_columns(
                columns.delta_fields(added, self.title),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        columns.list_invariants(handle)
        before = upkeep.live_files(handle)
        commit = stamp.commit_properties(position, handle.version() + 1)
        metrics: dict[str, Any] = {}
        if net.is_empty:
            # The batch undid itself. The position still moves, so that target and record agree.
            handle.create_write_transaction([], "append", handle.schema(), commit_properties=commit)
        elif net.truncated or self._may_append(net):
            mode: Literal["overwrite", "append"] = "overwrite" if net.truncated else "append"
            rows = columns.with_all_columns(net.rows, columns.existing_schema(handle))
            write_deltalake(handle, rows, mode=mode, commit_properties=commit)
            metrics["num_target_rows_inserted"] = len(rows)
        else:
            filled = fill_moved(handle, net, self.title)
            metrics = merge(handle, filled, commit, self.title)
        after = upkeep.live_files(handle)
        return Applied(
            version=handle.version(),
            rows_inserted=int(metrics.get("num_target_rows_inserted", 0)),
            rows_updated=int(metrics.get("num_target_rows_updated", 0)),
            rows_deleted=int(metrics.get("num_target_rows_deleted", 0)),
            bytes_written=sum(size for path, size in after.items() if path not in before),
        )

    def _may_append(self, net: NetChanges) -> bool:
        """Whether the rows can be added unseen: a MERGE would read every key of the table.

        Where others may change the data, only a MERGE is sure that no key comes twice.
        """
        return not net.key or (net.only_new and self.foreign_writes == "park")

    def _create(self, net: NetChanges, schema: pa.Schema, position: Position) -> Applied:
        """A table that begins with these changes: it was not to be copied."""
        if net.absent:
            raise no_source(self.title)
        schema = pa.schema([f.with_nullable(f.name not in net.key) for f in schema])
        write_deltalake(
            self.uri,
            columns.with_all_columns(net.rows, schema),
            mode="error",
            configuration=self._properties(),
            storage_options=dict(self.storage_options) or None,
            commit_properties=stamp.commit_properties(position, 0),
        )
        handle = self._reopened()
        assert handle is not None
        with suppress(CommitFailedError):
            columns.list_invariants(handle)
        return Applied(
            version=handle.version(),
            rows_inserted=len(net.rows),
            bytes_written=sum(upkeep.live_files(handle).values()),
        )


class _Incoming:
    """Batches of a copy in the table's types, counted; keeps the error that ended them."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str) -> None:
        self.batches, self.schema, self.table = batches, schema, table
        self.keys = [i for i, field in enumerate(schema) if not field.nullable]
        self.rows = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self.batches:
                self.rows += len(batch)
                yield self._checked(batch)
        except BaseException as error:
            # deltalake would give us its text only.
            self.error = error
            raise

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for place in self.keys:
            if batch.column(place).null_count:
                raise TableError(
                    f"key column {self.schema.names[place]!r} of {self.table} is NULL in"
                    f" {batch.column(place).null_count} row(s) of the copy",
                    hint="choose a key of columns that are never NULL",
                    table=self.table,
                    column=self.schema.names[place],
                )
        return batch if batch.schema.equals(self.schema) else batch.cast(self.schema)


def _is_past(at: Position, position: Position) -> bool:
    """Whether a table has nothing to take from a write that brings it to ``position``."""
    return (at.copy_number, at.lsn) >= (position.copy_number, position.lsn)


def _skipped(handle: DeltaTable, at: Position) -> Applied:
    return Applied(version=handle.version(), skipped=True, copy_number=at.copy_number)


def _readable(error: Exception, table: str) -> Exception:
    """An error of deltalake without the rows that its text may show."""
    text = str(error)
    if "failed validation check" in text or "Invalid data found" in text:
        return TableError(
            f"rows for {table} have NULL in a column that may not be NULL",
            hint="copy the table again: pgsluice copy CONFIG TABLE",
            table=table,
        )
    if "\n" in text:
        return PgsluiceError(f"writing {table} failed: {text.splitlines()[0]}", table=table)
    return error
