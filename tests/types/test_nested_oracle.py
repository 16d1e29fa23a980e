"""Structs of ranges and composites: text and binary form give the same values, and the server reads
back what they were."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest
from tests.support.databases import MakeDatabase
from tests.types.test_types_oracle import Oracle, binary_array
from tests.types.test_types_oracle import oracle as oracle

from pgsluice.catalog.tables.relations import fetch_types
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ConversionError
from pgsluice.types import TypeOptions, resolve_type
from pgsluice.verification.postgres_text import TextForm, postgres_text

STRUCT = TypeOptions(for_column=True, nested="struct")
HARD = ("''", "NULL", "'NULL'", "' '", "'a b'", "'\"'", "E'\\\\'", "E'\\\\\"'", "','", "'('", "')'")
HARD += ("'[x]'", "'{}'", "'é🐘'", "E'\\t\\n'")

SCHEMA = (
    "DROP SCHEMA IF EXISTS nested CASCADE",
    "CREATE SCHEMA nested",
    "SET search_path = nested, public",
    "CREATE TYPE texts AS RANGE (subtype = text, multirange_type_name = many_texts)",
    "CREATE TYPE one AS (t text)",
    "CREATE TYPE pair AS (n int, t text)",
    "CREATE DOMAIN short AS varchar(9)",
    "CREATE TYPE mood AS ENUM ('sad', 'so so')",
    (
        "CREATE TYPE deep AS (p pair, ps pair[], r int4range, rs int4range[], m nummultirange,"
        " f float8, d numeric(9,2), n numeric, b bytea, z timestamptz, x box[], y int[], s short,"
        " o mood, j jsonb, c char(3), ok bool)"
    ),
    "CREATE TYPE wide AS (d date, v numeric(4,1))",
    "CREATE TABLE hard (n serial, t text)",
    f"INSERT INTO hard (t) VALUES {', '.join(f'({text})' for text in HARD)}",
)
DEEP = """ROW(p, ARRAY[p, NULL, (7, NULL)::pair], '[1,3)', ARRAY['(,)', NULL, 'empty']::int4range[],
    '{[1.50,2],(3,)}', f, 1.5, 1.50, '\\x00ff5c22', '2024-02-29 12:00:00.5+00',
    '{(1,1),(0,0);(2,2),(1,1)}', '{1,NULL}', 'a,b', 'so so', '{"a": [1, "x"]}', 'x', n > 1)::deep"""

# title: a query
QUERIES = {
    "int4range": 'SELECT unnest(\'{empty,"[1,5)","(,)","[,7)",NULL}\'::int4range[])',
    "numrange": 'SELECT unnest(\'{empty,"[1.50,2]","(,-7.000)",NULL}\'::numrange[])',
    "tstzrange": "SELECT '[2024-01-01 00:00+02,)'::tstzrange UNION ALL SELECT NULL",
    "daterange": "SELECT '[0044-03-15 BC,2024-01-01)'::daterange",
    "datemultirange": 'SELECT unnest(\'{"{}","{[2024-01-01,2024-01-02),[2025-01-01,)}",NULL}\''
    "::datemultirange[])",
    "int4range[]": "SELECT ARRAY['[1,2)', NULL, 'empty']::int4range[] UNION ALL SELECT '{}'",
    "int4multirange[]": "SELECT ARRAY['{[1,2)}', NULL, '{}', '{[1,2),[3,4)}']::int4multirange[]",
    "nested.texts": "SELECT nested.texts(least(a.t, b.t), greatest(a.t, b.t), '[]')"
    " FROM hard a, hard b",
    "nested.many_texts": "SELECT nested.many_texts(nested.texts(t, t, '[]')) FROM hard",
    "nested.one": "SELECT ROW(t)::one FROM hard UNION ALL SELECT NULL",
    "nested.pair": "SELECT ROW(nullif(1, n % 3), t)::pair FROM hard",
    "nested.pair[]": "SELECT ARRAY[ROW(1, t)::pair, NULL] FROM hard UNION ALL SELECT '{}'",
    "nested.deep": f"SELECT {DEEP} FROM (SELECT ROW(n, t)::pair, n,"
    " ('{NaN,-0,1e-300,Infinity}'::float8[])[n] FROM hard) q (p, n, f)"
    " UNION ALL SELECT ROW(" + ", ".join(["NULL"] * 17) + ")::deep UNION ALL SELECT NULL",
}
UNFIT = {
    "daterange": "SELECT '[2024-01-01,infinity)'::daterange UNION ALL"
    " SELECT '[-infinity,2024-01-01)'",
    "datemultirange": "SELECT '{[2024-01-01,2024-01-02),[2025-01-01,infinity)}'::datemultirange",
    "nested.wide": "SELECT unnest(ARRAY[ROW('infinity', 1)::wide, ROW('2024-01-01', 'NaN')::wide])",
    "nested.wide[]": "SELECT ARRAY[ROW('infinity', 1)::wide, NULL]",
}


def same(one: pa.Array, other: pa.Array) -> bool:
    """Equal to the bit: NaN equals NaN."""
    if one.type != other.type:
        return False
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())


@pytest.fixture
def nested(oracle: Oracle) -> Oracle:
    for statement in SCHEMA:
        oracle.connection.execute(statement)
    return oracle


@pytest.mark.parametrize("title", QUERIES)
def test_values_come_through_text_and_binary(nested: Oracle, title: str) -> None:
    query = QUERIES[title]
    column, text, binary = nested.both_forms(query, STRUCT, definitions=True)

    decoded = column.decode_text(text)

    assert decoded.unfit is None
    assert decoded.values.type == column.arrow_type
    assert "struct<" in column.spark_ddl
    assert decoded.values.null_count == text.null_count
    assert same(column.decode_binary(binary).values, decoded.values)
    form = TextForm(is_array=title.endswith("[]"))
    printed = postgres_text(decoded.values, form).cast("large_binary")
    assert printed.to_pylist() == text.to_pylist()
    sliced = column.decode_text(text.slice(1)).values
    assert same(sliced, decoded.values.slice(1))


def test_hstore_is_a_map(database: MakeDatabase, pg10: EmbeddedServer) -> None:
    hard = ", ".join(f"({text})" for text in HARD)
    query = f"""WITH hard (t) AS (VALUES {hard})
        SELECT hstore(array_agg('k' || coalesce(t, '')), array_agg(t)) FROM hard
        UNION ALL SELECT hstore(t, t) FROM hard UNION ALL SELECT '' UNION ALL SELECT NULL"""
    chosen = TypeOptions(for_column=True, nested="map")
    with psycopg.connect(database(pg10).dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION hstore")
        nested = Oracle(connection)
        column, text, binary = nested.both_forms(query, chosen, definitions=True)
        decoded = column.decode_text(text)

    assert decoded.values.type == column.arrow_type
    assert decoded.values[0].as_py() != []
    assert column.decode_binary(binary).values.equals(decoded.values)
    assert postgres_text(decoded.values).cast("large_binary").to_pylist() == text.to_pylist()
    for bad in ("a", '"a"', '"a"=>', '"a"=>"b', '"a"=>"1",', '"a"=>"1", ', '"a"=>x', '"a"=>"b"c'):
        for decode in (column.decode_text, column.decode_binary):
            with pytest.raises(ConversionError, match="row 1 is not a value"):
                decode(binary_array([None, bad]))


@pytest.mark.parametrize("title", UNFIT)
def test_a_struct_of_which_one_field_does_not_fit_is_null(nested: Oracle, title: str) -> None:
    column, text, binary = nested.both_forms(UNFIT[title], STRUCT, definitions=True)
    for decoded in (column.decode_text(text), column.decode_binary(binary)):
        assert decoded.unfit is not None
        assert decoded.unfit.all()
        assert decoded.values.null_count == len(text)


@pytest.mark.parametrize(
    ("title", "texts"),
    {
        "int4range": ["", "[", "[1,2", "1,2)", "[1,2,3)", "[1)", '["1,2)', '["1"2,3)', "empty2"],
        "datemultirange": ["", "{", "{[}", "{[2024-01-01,)", "{[2024-01-01,),}", "[]"],
        "nested.pair": ["", "()", "(1)", "(1,2,3)", "1,2", '(1,")', '(1,"a"b")', '(1,a"")', "(x,)"],
    }.items(),
)
def test_other_texts_are_refused(nested: Oracle, title: str, texts: list[str]) -> None:
    (oid,) = nested.connection.execute("SELECT %s::regtype::oid", [title]).fetchone() or (0,)
    column = resolve_type(oid, -1, fetch_types(nested.connection, [oid]), STRUCT)
    good = {"int4range": "empty", "datemultirange": "{}", "nested.pair": "(,)"}[title]
    for text in texts:
        with pytest.raises(ConversionError, match="row 1 is not a value"):
            column.decode_text(binary_array([good, text]))
        with pytest.raises(ConversionError, match="row 1 is not a value"):
            column.decode_binary(binary_array([None, text]))
