"""Translates Spark's filters to SQL conditions, so that the server sends fewer rows.

Spark evaluates its filters on each row again. So a condition has to be true for every row that
Spark keeps, and may be true for others, such as rows with a value that does not fit Spark's type
and is NULL for Spark. Filters that could lose rows are not translated:

- IS NULL on a column with such values.
- NOT of an inexact condition.
- Comparisons of texts by order, unless the server's encoding is UTF-8: Spark compares bytes.
- Types that are not in :data:`_LITERALS`, including domains.
- Days around the change to the Gregorian calendar: Spark passes other days than the query has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.types as pt
from psycopg import sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pgsluice.facts import RelationFacts
from pgsluice.snapshots.content import PublishedContent
from pgsluice.spark.source.snapshot.reader import SnapshotReader
from pgsluice.spark.source.snapshot.table import Connection
from pgsluice.types import ColumnType

BOOL, INT8, INT2, INT4, TEXT, VARCHAR = 16, 20, 21, 23, 25, 1043
FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ = 700, 701, 1082, 1114, 1184
NUMERIC, UUID = 1700, 2950
_TEXTS = (TEXT, VARCHAR)
_ALWAYS_FIT = (BOOL, INT8, INT2, INT4, TEXT, VARCHAR, FLOAT4, FLOAT8, UUID)
_CALENDAR_CHANGE = date(1582, 10, 4), date(1582, 10, 17)
"""Days around the calendar change. Java's calendar lacks the ten days before 1582-10-15. Spark
converts a filter's values with it, so all of these days become that one; one more day on both sides
for other time zones."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_ORDER: Mapping[type[Filter], str] = {
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def _is_kept(day: date) -> bool:
    """Whether Spark passes the same day that the query has."""
    first, last = _CALENDAR_CHANGE
    return not first <= day <= last


def _as_is(_value: Any) -> bool:
    return True


_LITERALS: Mapping[int, tuple[str, type, Callable[[Any], bool]]] = {
    BOOL: ("bool", bool, _as_is),
    INT2: ("int8", int, _as_is),
    INT4: ("int8", int, _as_is),
    INT8: ("int8", int, _as_is),
    FLOAT4: ("float4", float, _as_is),
    FLOAT8: ("float8", float, _as_is),
    NUMERIC: ("numeric", Decimal, _as_is),
    DATE: ("date", date, _is_kept),
    TIMESTAMP: ("timestamp", datetime, lambda value: value.tzinfo is None),
    TIMESTAMPTZ: (
        "timestamptz",
        datetime,
        lambda value: value.tzinfo is not None and _is_kept(value.astimezone(UTC).date()),
    ),
    UUID: ("uuid", str, lambda value: _UUID.fullmatch(value) is not None),
}
"""By type OID: the name of the literal's type, Python's type of its values, and whether one of
these values is translated. Texts are handled separately: their form depends on the session."""


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The filters that Spark passes to the query of a snapshot; picklable."""

    filters: tuple[Filter, ...]

    def __call__(
        self,
        connection: Connection,
        facts: RelationFacts,
        types: Mapping[str, ColumnType],
        content: PublishedContent,
    ) -> str | None:
        """The SQL condition; None if no filter can be translated."""
        encoding = connection.info.parameter_status("server_encoding")
        columns = {
            column.name: _Column(
                connection,
                column.name,
                column.type_oid,
                is_utf8=encoding == "UTF8",
                is_decimal=pt.is_decimal(types[column.name].arrow_type),
                is_whole=column.name not in content.unlisted,
            )
            for column in facts.columns
        }
        conditions = [_condition(each, columns) for each in self.filters]
        return " AND ".join(f"({text})" for text in conditions if text is not None) or None


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table.

    Attributes:
        is_utf8: the server's encoding is UTF-8.
        is_decimal: its values are decimals in Spark.
        is_whole: it is read from all leaf partitions.
    """

    connection: Connection
    name: str
    type_oid: int
    is_utf8: bool
    is_decimal: bool
    is_whole: bool

    @property
    def sql(self) -> str:
        return sql.Identifier(self.name).as_string(self.connection)

    @property
    def always_fits(self) -> bool:
        """Whether it is NULL in Spark only if it is NULL on the server."""
        return self.type_oid in _ALWAYS_FIT and self.is_whole

    def literal(self, value: Any) -> str | None:
        """A value of the column's type as SQL."""
        if self.type_oid in _TEXTS:
            return self._text(value)
        if self.type_oid == NUMERIC and not self.is_decimal:
            return None
        name, kind, is_translated = _LITERALS.get(self.type_oid, ("", None, _as_is))
        is_one = type(value) is kind and is_translated(value)
        return f"'{value}'::pg_catalog.{name}" if is_one else None

    def _text(self, value: Any) -> str | None:
        if not isinstance(value, str) or "\0" in value or not (self.is_utf8 or value.isascii()):
            return None
        # Byte by byte, as Spark compares: the column's collation may find more texts equal.
        return f'{sql.Literal(value).as_string(self.connection)}::pg_catalog.text COLLATE "C"'


def _condition(given: Filter, columns: Mapping[str, _Column]) -> str | None:
    """A filter as SQL; None if no condition is true for every row that Spark keeps."""
    if isinstance(given, Not):
        return _negated(given.child, columns)
    path: tuple[str, ...] = getattr(given, "attribute", ())
    column = columns.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    match given:
        case EqualTo(_, value):
            return _compared(column, "=", value)
        case EqualNullSafe(_, value):
            return _is_null(column) if value is None else _compared(column, "=", value)
        case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _ordered(column, _ORDER[type(given)], given.value)
        case In(_, values):
            literals = [column.literal(value) for value in values if value is not None]
            if not literals or None in literals:
                return None
            return f"{column.sql} IN ({', '.join(str(literal) for literal in literals)})"
        case IsNull():
            return _is_null(column)
        case IsNotNull():
            return f"{column.sql} IS NOT NULL"
        case StringStartsWith() | StringEndsWith() | StringContains():
            return _searched(column, given)
        case _:
            return None


def _negated(child: Filter, columns: Mapping[str, _Column]) -> str | None:
    """NOT of a filter whose condition is exact."""
    match child:
        case EqualNullSafe() | IsNotNull() | Not():
            return None
        case In(_, values) if None in values:
            return None
        case _:
            condition = _condition(child, columns)
            return None if condition is None else f"NOT ({condition})"


def _compared(column: _Column, operator: str, value: Any) -> str | None:
    literal = column.literal(value)
    return None if literal is None else f"{column.sql} {operator} {literal}"


def _ordered(column: _Column, operator: str, value: Any) -> str | None:
    if column.type_oid == UUID or (column.type_oid in _TEXTS and not column.is_utf8):
        return None
    return _compared(column, operator, value)


def _is_null(column: _Column) -> str | None:
    return f"{column.sql} IS NULL" if column.always_fits else None


def _searched(
    column: _Column, given: StringStartsWith | StringEndsWith | StringContains
) -> str | None:
    literal = column.literal(given.value) if column.type_oid in _TEXTS else None
    if literal is None:
        return None
    match given:
        case StringContains():
            return f"pg_catalog.strpos({column.sql}, {literal}) > 0"
        case StringStartsWith():
            return f"pg_catalog.left({column.sql}, {len(given.value)}) = {literal}"
        case _:
            return f"pg_catalog.right({column.sql}, {len(given.value)}) = {literal}"


class FilteringSnapshotReader(SnapshotReader):
    """A reader that also passes Spark's filters to the server."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters, but also leave all of them to Spark."""
        self._selection = replace(self._selection, condition=PushedFilters(tuple(filters)))
        return filters
