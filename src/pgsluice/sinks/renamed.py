"""A sink whose tables or columns have other names than at the source: the one place that turns the
source's names into those at the target, and back.

It stands between the rest of pgsluice, which knows the source's names only, and any sink, which
knows those at the target only. Columns that only targets have (of logs, histories, deleted rows,
parts of times) keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.changes.unique import UnprovedKeys
from pgsluice.changes.whole_rows import WholeRows
from pgsluice.columnar.changes import Int64s
from pgsluice.config.values.target_names import TargetNames
from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.shown import shown
from pgsluice.sinks.contract import (
    AddedColumn,
    Applied,
    Sink,
    StagedChanges,
    StagedRows,
    TableHandle,
    TargetContent,
    TargetTable,
)
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.verification import TargetRows

Item = TypeVar("Item")
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
_NOT_OURS = "{} (at the target)"
"""What the source's side calls a column of the target that no source column can be."""


class _Columns:
    """The names of one table's columns, in both directions.

    Args:
        renamed: source -> target, without columns whose name stays.
    """

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._at_target = renamed
        self._at_source = {given: name for name, given in renamed.items()}
        self._of_source: list[TableError] = []

    def at_target(self, name: str) -> str:
        return self._at_target.get(name, name)

    def at_source(self, name: str) -> str:
        if name in self._at_source:
            return self._at_source[name]
        return _NOT_OURS.format(name) if name in self._at_target else name

    def schema(self, schema: pa.Schema) -> pa.Schema:
        return _schema(schema, self.at_target)

    def table(self, rows: pa.Table) -> pa.Table:
        return _rows(rows, self.at_target)

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return (_rows(batch, self.at_target) for batch in self.of_source(rows))

    def source_schema(self, schema: pa.Schema) -> pa.Schema:
        return _schema(schema, self.at_source)

    def source_batches(self, rows: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return (_rows(batch, self.at_source) for batch in rows)

    def of_source(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; errors on the way to them name the source's columns."""
        try:
            yield from items
        except TableError as error:
            self._of_source.append(error)
            raise

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the target's column have the source's name of it, too."""
        try:
            yield
        except TableError as error:
            name = error.facts.get("column")
            if name in self._at_source and error not in self._of_source:
                column = self._at_source[name]
                error.details += (shown(f"{name} is the target's name of column {column}"),)
                error.facts["column"] = column
            raise

    def changes(self, net: NetChanges) -> NetChanges:
        return replace(
            net,
            schema=self.schema(net.schema),
            key=tuple(map(self.at_target, net.key)),
            rows=self.table(net.rows),
            absent={self.at_target(name): mask for name, mask in net.absent.items()},
            source_keys=self.table(net.source_keys),
            deletes=self.table(net.deletes),
            unproved=None if net.unproved is None else self._unproved(net.unproved),
            whole_rows=None if net.whole_rows is None else self._whole_rows(net.whole_rows),
        )

    def _unproved(self, unproved: UnprovedKeys) -> UnprovedKeys:
        keys = self.table(unproved.keys)
        return _RenamedKeys(keys, unproved.is_new, unproved.positions, unproved)

    def _whole_rows(self, whole: WholeRows) -> WholeRows:
        return replace(
            whole,
            columns=tuple(map(self.at_target, whole.columns)),
            values=self.table(whole.values),
            rows=self.table(whole.rows),
        )


@dataclass(frozen=True, slots=True)
class _RenamedKeys(UnprovedKeys):
    """Keys whose errors name the source's columns."""

    at_source: UnprovedKeys

    def refuse_shared(self, found: Int64s, table: str) -> None:
        self.at_source.refuse_shared(found, table)


@dataclass(frozen=True, slots=True)
class RenamedTable(TargetTable):
    """A table with the names at the target; messages have those at the source."""

    source_title: str = ""
    source_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.source_title

    @property
    def source_key(self) -> tuple[str, ...]:
        return tuple(self.source_names.get(name, name) for name in self.key)


@dataclass(frozen=True, slots=True)
class RenamingSink:
    """A sink with other names than the source's; picklable.

    Attributes:
        sink: the wrapped sink, which uses the names at the target.
        names: the target's name of each schema, table and column.
    """

    sink: Sink
    names: TargetNames

    def location(self, namespace: str, name: str) -> str:
        """The location of a table, by its names at the source."""
        return self.sink.location(*self.names.table(namespace, name))

    def open(self, table: TargetTable, identity: TargetIdentity) -> TableHandle:
        """Open a table at its newest version, even if it does not exist yet."""
        renamed = self.names.columns(table.title)
        columns = _Columns(renamed)
        namespace, name = self.names.table(table.namespace, table.name)
        at_source = {each.name: getattr(table, each.name) for each in fields(TargetTable)}
        at_target = {
            "namespace": namespace,
            "name": name,
            "schema": columns.schema(table.schema),
            "key": tuple(map(columns.at_target, table.key)),
        }
        source_names = {given: column for column, given in renamed.items()}
        handle = self.sink.open(
            RenamedTable(
                **{**at_source, **at_target}, source_title=table.title, source_names=source_names
            ),
            identity,
        )
        return cast(TableHandle, _RenamedHandle(handle, columns)) if renamed else handle


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """Rows of a target that are read without its sink, with the source's names."""

    rows: TargetRows
    columns: _Columns

    @property
    def schema(self) -> pa.Schema:
        return self.columns.source_schema(self.rows.schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        at_target = [*map(self.columns.at_target, columns)]
        yield from self.columns.source_batches(self.rows.batches(at_target))


def schema_at_target(schema: pa.Schema, names: TargetNames, title: str) -> pa.Schema:
    """The columns of a table with their names at the target."""
    return _Columns(names.columns(title)).schema(schema)


def rows_at_source(rows: TargetRows, names: TargetNames, title: str) -> TargetRows:
    """The rows of a table's target with the source's names of its columns."""
    renamed = names.columns(title)
    return _SourceRows(rows, _Columns(renamed)) if renamed else rows


class _RenamedHandle:
    """A target table, with the source's names of its columns. The methods of
    :class:`.TableHandle` that have no columns are those of the wrapped handle.

    Args:
        handle: knows the names at the target.
        columns: what they are.
    """

    def __init__(self, handle: TableHandle, columns: _Columns) -> None:
        self._handle = handle
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def schema(self) -> pa.Schema | None:
        schema = self._handle.schema()
        return None if schema is None else self._columns.source_schema(schema)

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        with self._columns.named():
            return self._handle.load(self._columns.batches(rows), position)

    def target_types(self, schema: pa.Schema) -> pa.Schema:
        with self._columns.named():
            types = self._handle.target_types(self._columns.schema(schema))
            return self._columns.source_schema(types)

    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        with self._columns.named():
            renamed = [replace(each, field=self._renamed(each.field)) for each in added]
            return self._handle.alter(renamed, [*map(self._renamed, widened)], position)

    def _renamed(self, column: pa.Field) -> pa.Field:
        return column.with_name(self._columns.at_target(column.name))

    def comments(self) -> TableComments | None:
        comments = self._handle.comments()
        return None if comments is None else _comments(comments, self._columns.at_source)

    def comment(self, comments: TableComments, position: Lsn) -> Applied:
        return self._handle.comment(_comments(comments, self._columns.at_target), position)

    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        with self._columns.named():
            return self._handle.apply(self._columns.changes(changes), position)

    def content(self, version: int) -> TargetContent | None:
        content = self._handle.content(version)
        if content is None:
            return None
        schema = self._columns.source_schema(content.schema)
        return replace(content, schema=schema, rows=self._columns.source_batches(content.rows))

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch] | None:
        batches = self._handle.keys([*map(self._columns.at_target, columns)])
        return None if batches is None else self._columns.source_batches(batches)

    def stage_load(self, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        with self._columns.named():
            return self._handle.stage_load(self._columns.batches(rows))

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        with self._columns.named():
            return self._handle.commit_load(staged, position)

    def stage_rows(self, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        with self._columns.named():
            return self._handle.stage_rows(
                self._columns.schema(schema), self._columns.batches(rows)
            )

    def append(self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        with self._columns.named():
            return self._handle.append(self._columns.schema(schema), staged, position)

    def load_versions(
        self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn
    ) -> Applied:
        with self._columns.named():
            return self._handle.load_versions(self._columns.schema(schema), staged, position)

    def stage_changes(self, pieces: Iterable[NetChanges]) -> StagedChanges:
        with self._columns.named():
            pieces = self._columns.of_source(pieces)
            return self._handle.stage_changes(map(self._columns.changes, pieces))

    def commit_changes(self, staged: Sequence[StagedChanges], position: Lsn) -> Applied:
        with self._columns.named():
            return self._handle.commit_changes(staged, position)


def _schema(schema: pa.Schema, name_of: Callable[[str], str]) -> pa.Schema:
    return pa.schema([each.with_name(name_of(each.name)) for each in schema], schema.metadata)


def _rows(rows: Rows, name_of: Callable[[str], str]) -> Rows:
    if not rows.schema.names:  # which have a number all the same
        return rows
    return type(rows).from_arrays(rows.columns, schema=_schema(rows.schema, name_of))


def _comments(comments: TableComments, name_of: Callable[[str], str]) -> TableComments:
    return replace(comments, columns={name_of(n): text for n, text in comments.columns.items()})
