"""A sink whose tables or columns have other names than at the source: the one place that turns the
source's names into those at the target, and back.

It stands between the rest of pgsluice, which knows the source's names only, and any sink, which
knows those at the target only. Columns that only targets have (of logs, histories, deleted rows,
parts of times) keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.changes.unique import UnprovedKeys
from pgsluice.changes.whole_rows import WholeRows
from pgsluice.columnar.changes import Int64s
from pgsluice.config.values.target_names import TargetNames
from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import TableError
from pgsluice.shown import shown
from pgsluice.sinks.contract import AddedColumn, Sink, TableHandle, TargetContent, TargetTable
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.verification import TargetRows

Item = TypeVar("Item")
_NOT_OURS = "{} (at the target)"
"""What the source's side calls a column of the target that no source column can be."""


class _Columns:
    """The names of one table's columns, in both directions; ``renamed``: source -> target, without
    columns whose name stays."""

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

    def translated(self, value: Any, name_of: Callable[[str], str]) -> Any:
        """A value that a method of :class:`.TableHandle` takes or returns, with other names of
        columns; its type says where it has some."""

        def other(part: Any) -> Any:
            return self.translated(part, name_of)

        match value:
            case str():
                return name_of(value)
            case pa.Field():
                return value.with_name(name_of(value.name))
            case pa.Schema():
                return pa.schema(map(other, value), value.metadata)
            case pa.Table() | pa.RecordBatch():
                if not value.schema.names:  # which have a number all the same
                    return value
                return type(value).from_arrays(value.columns, schema=other(value.schema))
            case UnprovedKeys():
                return _RenamedKeys(other(value.keys), value.is_new, value.positions, value)
            case TableComments():
                return replace(value, columns=other(value.columns))
            case NetChanges() | WholeRows() | AddedColumn() | TargetContent():
                parts = {each.name: getattr(value, each.name) for each in fields(value)}
                return replace(value, **{name: other(part) for name, part in parts.items()})
            case dict():
                return {name_of(name): part for name, part in value.items()}
            case list() | tuple():
                return type(value)(map(other, value))
            case np.ndarray() | pa.Scalar():
                return value
            case Iterable():
                return map(other, self.of_source(value))
        return value


@dataclass(frozen=True, slots=True)
class _RenamedKeys(UnprovedKeys):
    """Keys whose errors name the source's columns."""

    at_source: UnprovedKeys

    def refuse_shared(self, found: Int64s, table: str) -> None:
        self.at_source.refuse_shared(found, table)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedTable(TargetTable):
    """A table with the names at the target; messages have those at the source."""

    source_title: str
    columns: _Columns

    @property
    def title(self) -> str:
        return self.source_title

    @property
    def source_key(self) -> tuple[str, ...]:
        return tuple(map(self.columns.at_source, self.key))


@dataclass(frozen=True, slots=True)
class RenamingSink:
    """A sink with other names of schemas, tables and columns than the source's, around one that
    uses the names at the target; picklable."""

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
        of_table = {each.name: getattr(table, each.name) for each in fields(TargetTable)}
        at_target = {
            "namespace": namespace,
            "name": name,
            "schema": columns.translated(table.schema, columns.at_target),
            "key": columns.translated(table.key, columns.at_target),
        }
        handle = self.sink.open(
            RenamedTable(**{**of_table, **at_target}, source_title=table.title, columns=columns),
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
        return self._at_source(self.rows.schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._at_source(self.rows.batches([*map(self.columns.at_target, columns)]))

    def _at_source(self, value: Any) -> Any:
        return self.columns.translated(value, self.columns.at_source)


def schema_at_target(schema: pa.Schema, names: TargetNames, title: str) -> pa.Schema:
    """The columns of a table with their names at the target."""
    given = names.columns(title)
    return pa.schema([field.with_name(given.get(field.name, field.name)) for field in schema])


def rows_at_source(rows: TargetRows, names: TargetNames, title: str) -> TargetRows:
    """The rows of a table's target with the source's names of its columns."""
    renamed = names.columns(title)
    return _SourceRows(rows, _Columns(renamed)) if renamed else rows


class _RenamedHandle:
    """A target table, with the source's names of its columns in all that methods of
    :class:`.TableHandle` take and return."""

    def __init__(self, handle: TableHandle, columns: _Columns) -> None:
        self._handle = handle
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._handle, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        columns = self._columns
        with columns.named():
            taken = [columns.translated(each, columns.at_target) for each in arguments]
            return columns.translated(method(*taken), columns.at_source)
