"""The server leaves out no row that Spark's filters keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
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
from tests.support.databases import MakeDatabase

from pgsluice.facts import RelationFacts
from pgsluice.replication import connect_sql
from pgsluice.snapshots.content import PublishedContent
from pgsluice.spark.source.lookup import catalog_types
from pgsluice.spark.source.options import TableName
from pgsluice.spark.source.snapshot.pushed_filters import PushedFilters
from pgsluice.spark.source.snapshot.table import find_table
from pgsluice.types import TypeOptions

NAN, INFINITY = float("nan"), float("inf")
NOON = datetime(2024, 2, 29, 12, 0, 0, 1)
VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int2": [-32768, 0, 7, 32767],
    "int4": [-(2**31), 0, 7, 2**31 - 1],
    "int8": [-(2**63), 0, 7, 2**63 - 1],
    "float4": [-INFINITY, -1.5, -0.0, 0.0, 0.10000000149011612, INFINITY, NAN],
    "float8": [-INFINITY, -1.5, -0.0, 0.0, 0.1, 5e-324, INFINITY, NAN],
    "numeric(9,3)": [Decimal("-1.500"), Decimal("0.000"), Decimal("999999.999")],
    "date": [date(1, 1, 1), date(1582, 10, 10), date(2024, 2, 29), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1), NOON, datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "timestamptz": [datetime(1, 1, 2, tzinfo=UTC), NOON.replace(tzinfo=UTC)],
    "text": ["", " ", "a", "A", "a ", "ab", "ä", "a\u0308", "b'\\", "%_", "\uffff", "\U0001f600"],
    "varchar": ["", "a", "ab", "é", "e\u0301"],
    'text COLLATE "und_loose"': ["a", "A", "ab", "ä"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-0000-4000-8000-0000000000ff"],
}
UNFIT = {
    "numeric(9,3)": ["NaN"],
    "date": ["infinity", "-infinity"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 00:00:00 BC"],
    "timestamptz": ["infinity", "-infinity"],
}
"""Values that Spark sees as NULL."""


def order(value: Any) -> Any:
    """What Spark orders values by: NaN is the greatest, -0.0 is 0.0, texts are bytes."""
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value + 0.0)
    return value.encode() if isinstance(value, str) else value


def keeps(given: Filter, value: Any) -> bool | None:
    """Spark's answer to a filter of one value; None is SQL's NULL."""
    match given:
        case Not(child):
            answer = keeps(child, value)
            return None if answer is None else not answer
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe(_, other):
            if value is None or other is None:
                return value is other
            return bool(order(value) == order(other))
        case In(_, others):
            if value is None:
                return None
            is_in = any(other is not None and order(value) == order(other) for other in others)
            return None if not is_in and None in others else is_in
    return None if value is None else bool(COMPARISONS[type(given)](value, given.value))  # type: ignore[attr-defined]


COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: order(value) == order(other),
    LessThan: lambda value, other: order(value) < order(other),
    LessThanOrEqual: lambda value, other: order(value) <= order(other),
    GreaterThan: lambda value, other: order(value) > order(other),
    GreaterThanOrEqual: lambda value, other: order(value) >= order(other),
    StringStartsWith: lambda value, other: value.startswith(other),
    StringEndsWith: lambda value, other: value.endswith(other),
    StringContains: lambda value, other: other in value,
}


def filters_of(name: str, values: list[Any]) -> Iterator[Filter]:
    """Every filter of a column that Spark may offer."""
    path = (name,)
    positive: list[Filter] = [IsNull(path), IsNotNull(path), EqualNullSafe(path, None)]
    for number, value in enumerate(values):
        positive += [EqualNullSafe(path, value), In(path, (value,)), In(path, (value, None))]
        positive.append(In(path, (value, values[number - 1])))
        for kind in COMPARISONS:
            if isinstance(value, str) or not kind.__name__.startswith("String"):
                positive.append(kind(path, value))  # type: ignore[call-arg]
    for given in positive:
        yield given
        yield Not(given)


class Rows:
    """A table with a column of each type, and a row for each value."""

    def __init__(self, connection: psycopg.Connection[Any], facts: RelationFacts) -> None:
        self._connection = connection
        self._facts = facts
        self._types = catalog_types(facts, TypeOptions())

    def pushed(self, given: Filter) -> str | None:
        """The condition that the server gets."""
        content = PublishedContent(None, None)
        return PushedFilters((given,))(self._connection, self._facts, self._types, content)

    def answer(self, condition: str) -> set[int]:
        """The rows that the server sends."""
        rows = self._connection.execute(f"SELECT id FROM public.t WHERE {condition}".encode())
        return {id_ for (id_,) in rows}


@pytest.fixture(params=["UTF8", "LATIN1"])
def connection(request: pytest.FixtureRequest, database: MakeDatabase) -> Iterator[Any]:
    """A session of a database with this encoding."""
    shop = database()
    name = f"{shop.name}_of_texts"
    shop.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{request.param}'"
        " LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        with connect_sql(make_conninfo(shop.dsn, dbname=name)) as session:
            session.execute("SET search_path = public")
            yield session
    finally:
        shop.execute(f"DROP DATABASE {name}")


def test_the_server_sends_every_row_that_spark_keeps(connection: psycopg.Connection[Any]) -> None:
    is_utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
    has_loose = is_utf8 and has_icu(connection)
    columns = {kind: f"c{n}" for n, kind in enumerate(VALUES) if has_loose or "COLLATE" not in kind}
    definitions = ", ".join(f"{name} {kind}" for kind, name in columns.items())
    connection.execute(f"CREATE TABLE t (id int, {definitions})".encode())
    seen: dict[int, tuple[str, Any]] = {}
    for kind, name in columns.items():
        for value in [*VALUES[kind], *UNFIT.get(kind, []), None]:
            if is_utf8 or not isinstance(value, str) or is_latin(value):
                id_ = len(seen)
                seen[id_] = name, None if value in UNFIT.get(kind, []) else value
                insert = f"INSERT INTO t (id, {name}) VALUES (%s, %s)"
                connection.execute(insert.encode(), [id_, value])
    rows = Rows(connection, find_table(connection, TableName("public", "t")))
    pushed = 0
    for kind, name in columns.items():
        own_nulls = {id_ for id_, (own, value) in seen.items() if own == name and value is None}
        for given in filters_of(name, VALUES[kind]):
            condition = rows.pushed(given)
            if condition is None:
                continue
            pushed += 1
            kept = {
                id_
                for id_, (own, value) in seen.items()
                if keeps(given, value if own == name else None)
            }
            sent = rows.answer(condition)
            assert kept <= sent, f"{kind}: {condition} leaves out what Spark keeps"
            assert sent <= kept | own_nulls, f"{kind}: {condition} lets too much pass"
    assert pushed > 800


def test_days_that_javas_calendar_lacks_are_left_to_spark(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute("CREATE TABLE t (d date, tz timestamptz, ts timestamp)")
    rows = Rows(connection, find_table(connection, TableName("public", "t")))
    moved = datetime(1582, 10, 15, 12)  # so 1582-10-10 comes from Spark
    for column, value in (("d", moved.date()), ("tz", moved.replace(tzinfo=UTC))):
        for kind in (EqualTo, GreaterThan, LessThanOrEqual):
            assert rows.pushed(kind((column,), value)) is None
        assert rows.pushed(In((column,), (value,))) is None
        assert rows.pushed(Not(EqualTo((column,), value))) is None
    assert rows.pushed(EqualTo(("ts",), moved)) is not None  # it has no calendar of Java's


def has_icu(connection: psycopg.Connection[Any]) -> bool:
    """Make a collation that finds more texts equal, if the server was built with ICU."""
    try:
        connection.execute(
            "CREATE COLLATION und_loose"
            " (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def is_latin(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True
