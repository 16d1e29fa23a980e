"""COPY in binary form: texts beside binary values, and decimals.

``tests/copy/test_types.py`` compares each type of the registry with the stream.
"""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.support.databases import MakeDatabase

from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.replication import connect_sql
from pgsluice.snapshots.copied_rows import copied_blocks
from pgsluice.snapshots.ranges import Read
from pgsluice.snapshots.reader import TableQuery
from pgsluice.types import resolve_type
from pgsluice.types.codec import Spans
from pgsluice.types.numeric_binary import numeric_binary_to_decimals


def test_texts_are_those_that_the_type_prints_and_not_a_cast(database: MakeDatabase) -> None:
    """Nor is a row of NULLs a NULL."""
    shop = database()
    shop.execute(
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE TABLE t (p pair, i inet)",
        "INSERT INTO t VALUES (ROW(NULL, NULL), '10.0.0.1'), (NULL, NULL)",
    )
    with connect_sql(shop.dsn) as connection:
        ((oid,),) = connection.execute("SELECT 'public.t'::regclass::oid").fetchall()
        facts = fetch_relation_facts(connection, oid)
        assert facts is not None
        types = tuple(
            resolve_type(column.type_oid, -1, facts.type_definitions()) for column in facts.columns
        )
        query = TableQuery(facts, ("p", "i"), types)
        (block,) = copied_blocks(connection, query.copy_statement(Read()))
        columns = [values.array().to_pylist() for values in block.columns([None, None])]
    assert columns == [[b"(,)", None], [b"10.0.0.1", None]]


def test_decimals_of_up_to_18_digits_are_computed_without_their_text(
    database: MakeDatabase,
) -> None:
    chance = random.Random(11)
    with connect_sql(database().dsn) as connection:
        for precision, scale in ((1, 0), (4, 4), (12, 2), (18, 0), (18, 18), (18, 7), (17, 3)):
            largest = 10**precision - 1
            numbers = [0, 1, -1, largest, -largest, *(10**n for n in range(precision))]
            numbers += [chance.randint(-(10**n), 10**n) for n in range(precision) for _ in range(9)]
            texts = [str(Decimal(number).scaleb(-scale)) for number in numbers]
            rows = connection.execute(
                f"SELECT numeric_send(v::numeric({precision},{scale})) FROM unnest(%s::text[]) v",
                [[*texts, None]],
            ).fetchall()
            values = pa.array([value for (value,) in rows], pa.large_binary())
            arrow_type = pa.decimal128(precision, scale)
            found = numeric_binary_to_decimals(Spans.of(values), arrow_type)
            assert found is not None
            assert found.equals(pa.array([*map(Decimal, texts), None], arrow_type))


@pytest.mark.parametrize(
    ("value", "arrow_type"),
    [
        ("NaN", pa.decimal128(12, 2)),
        ("100", pa.decimal128(2, 0)),
        ("0.01", pa.decimal128(2, 1)),
        ("1e40", pa.decimal128(18, 0)),
        ("99999999999999999999", pa.decimal128(18, 0)),
        ("1", pa.decimal128(19, 0)),
    ],
)
def test_decimals_that_need_more_care_are_left_to_it(
    database: MakeDatabase, value: str, arrow_type: pa.DataType
) -> None:
    with connect_sql(database().dsn) as connection:
        ((sent,),) = connection.execute("SELECT numeric_send(%s::numeric)", [value]).fetchall()
    assert (
        numeric_binary_to_decimals(Spans.of(pa.array([sent], pa.large_binary())), arrow_type)
        is None
    )
