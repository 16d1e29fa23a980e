"""The server says what is right.

Three ways must meet for every value: its text form decoded, its binary form decoded, and what
the server prints after it has read back what we encode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.pq import ExecStatus, Format

from pgsluice.catalog.tables.relations import fetch_types
from pgsluice.embedded import EmbeddedServer
from pgsluice.types import ENTRIES, ColumnType, TypeDefinition, TypeOptions, resolve_type
from pgsluice.types.codec import Spans
from pgsluice.verification.postgres_text import TextForm, postgres_text


def binary_array(values: Sequence[str | bytes | None]) -> pa.Array:
    """Values as the columnar decoder hands them over."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.array(encoded, pa.large_binary())


@dataclass(frozen=True)
class Oracle:
    """One connection with the session settings that a replication connection has."""

    connection: psycopg.Connection[Any]

    def fetch(self, query: str, form: Format = Format.TEXT) -> tuple[pa.Array, int, int]:
        """One column of a query as its output (or send) function gives it.

        Returns:
            the values, the column's type OID and its modifier.
        """
        result = self.connection.pgconn.exec_params(query.encode(), None, result_format=form)
        assert result.status == ExecStatus.TUPLES_OK, result.get_error_message()
        values = [result.get_value(row, 0) for row in range(result.ntuples)]
        return binary_array(values), result.ftype(0), result.fmod(0)

    def both_forms(
        self, query: str, options: TypeOptions, *, definitions: bool = False
    ) -> tuple[ColumnType, pa.Array, pa.Array]:
        """A query's column, its type, its text forms and its binary forms; ``definitions``: the
        type may be a user's."""
        text, type_oid, typmod = self.fetch(query)
        binary, _, _ = self.fetch(query, Format.BINARY)
        known = fetch_types(self.connection, [type_oid]) if definitions else {}
        return resolve_type(type_oid, typmod, known, options), text, binary

    def printed(self, texts: pa.Array, type_name: str) -> list[bytes | None]:
        """What the server prints after its own input function read the texts."""
        self.connection.execute("CREATE TEMP TABLE printed (n int, v text)")
        with self.connection.cursor().copy("COPY printed FROM STDIN") as copy:
            for number, text in enumerate(texts.to_pylist()):
                copy.write_row((number, text))
        values, _, _ = self.fetch(f"SELECT CAST(v AS {type_name}) FROM printed ORDER BY n")
        self.connection.execute("DROP TABLE printed")
        return values.to_pylist()


@pytest.fixture
def oracle(pg18: EmbeddedServer) -> Iterator[Oracle]:
    """A session whose text forms are lossless."""
    settings = "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c timezone=UTC"
    with psycopg.connect(pg18.dsn(), autocommit=True, options=settings) as connection:
        yield Oracle(connection)


# type: values that it has, as SQL literals
VALUES: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "int2": ["-32768", "32767", "0"],
    "int4": ["-2147483648", "2147483647", "0"],
    "int8": ["-9223372036854775808", "9223372036854775807", "0"],
    "oid": ["0", "4294967295"],
    "float4": ["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1", "16777217"],
    "float8": ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38, "0"],
    "numeric(38,38)": ["0." + "9" * 38, "-0." + "0" * 37 + "1"],
    "numeric(10,2)": ["0.01", "-99999999.99", "100", "0"],
    "numeric(3,5)": ["0.00999", "-0.00001"],
    "numeric(3,-2)": ["99900", "-100", "49"],
    "numeric": ["1e131071", "-0.000000000000000000000000000001", "NaN", "-Infinity", "1.500", "0"],
    "numeric(50,3)": ["9" * 47 + ".001"],
    "text": ["", "plain", "ünïcödé 🐘", "\ttab\nline\\ '\"", "NULL"],
    "varchar(5)": ["", "abcde"],
    "char(5)": ["ab", "     "],
    "name": ["a_name"],
    '"char"': ["x", ""],
    "bytea": ["\\x", "\\x00ff", "\\xdeadbeef"],
    "date": [
        "4713-01-01 BC",
        "0001-12-31 BC",
        "0001-01-01",
        "9999-12-31",
        "10000-01-01",
        "262142-12-31",
        "1600-02-29",
        "1900-02-28",
        "2000-02-29",
        "1970-01-01",
    ],
    "timestamp": [
        "4713-11-24 00:00:00 BC",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "294247-01-10 04:00:54.775807",
        "2024-02-29 12:00:00.1",
        "1969-12-31 23:59:59.999999",
    ],
    "timestamptz": [
        "4713-11-24 00:00:00+00 BC",
        "0001-01-01 00:00:00+00",
        "9999-12-31 23:59:59+00",
        "294247-01-10 04:00:54.775807+00",
        "1880-06-01 12:00:00.000001+00",
        "2024-07-01 12:00:00.5+00",
        "0001-01-01 00:00:00+14",
    ],
    "time": ["00:00:00", "24:00:00", "12:34:56.789"],
    "timetz": ["12:34:56.789+05:30", "24:00:00-15:59"],
    "interval": ["-1 mons +3 days -04:05:06.7", "178000000 years", "0"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "json": ['{"a":  [1, null]}', '"\\u00fc"', "null"],
    "jsonb": ['{"a":  [1, null]}', '"ü"', "1.50"],
    "inet": ["::1/64", "10.0.0.1"],
    "int4range": ["empty", "[1,5)"],
    "box": ["(1,1),(0,0)"],
    "int4[]": ["{}", "{1,NULL,-2147483648}"],
    "text[]": ["{}", '{"",NULL,"NULL","a b","{x}","q\\"q","b\\\\b",",",plain,"\\\\\\""}'],
    "numeric(10,2)[]": ["{1,2.5,NULL}"],
    "bytea[]": ['{"\\\\x00ff","\\\\x"}'],
    "timestamptz[]": ['{"2024-07-01 12:00:00.5+00",NULL}'],
    "bool[]": ["{t,f,NULL}"],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"],
    "jsonb[]": ['{"{\\"a\\": \\"x,y\\"}"}'],
    "box[]": ["{(1,1),(0,0);(2,2),(1,1)}"],
    "date[]": ['{"0044-03-15 BC",2024-01-01}'],
}

# type: values that its Arrow type cannot hold
UNFIT: dict[str, list[str]] = {
    "numeric(10,2)": ["NaN"],
    "date": ["infinity", "-infinity", "262143-01-01", "5874897-12-31"],
    "timestamp": [
        "infinity",
        "-infinity",
        "294276-12-31 23:59:59.999999",
        "294247-01-10 04:00:54.775808",
    ],
    "timestamptz": ["infinity", "-infinity", "294247-01-10 04:00:54.775808+00"],
    "int4[]": ["{{1,2},{3,4}}", "[0:1]={7,8}", "[-3:-3]={1}", "[2:2][1:1]={{5}}"],
    "text[]": ['{{"a,b"},{"}"}}'],
    "date[]": ["{2024-01-01,infinity}"],
    "numeric(10,2)[]": ["{NaN}"],
}


def literals(type_name: str, values: list[str]) -> str:
    rows = ", ".join("('{}')".format(value.replace("'", "''")) for value in values)
    return f"SELECT CAST(v AS {type_name}) FROM (VALUES {rows}, (NULL)) AS t (v)"


@pytest.mark.parametrize("type_name", VALUES)
def test_values_come_through_text_and_binary(oracle: Oracle, type_name: str) -> None:
    query = literals(type_name, VALUES[type_name])
    column, text, binary = oracle.both_forms(query, TypeOptions())

    decoded = column.decode_text(text)

    assert decoded.unfit is None
    assert decoded.values.type == column.arrow_type
    assert decoded.values.null_count == 1
    form = TextForm(";" if type_name == "box[]" else ",")
    printed = postgres_text(decoded.values, form)
    assert oracle.printed(printed, type_name) == text.to_pylist()
    assert identical(column.decode_binary(binary).values, decoded.values)
    assert identical(column.decode_spans(Spans.of(binary)).values, decoded.values)


@pytest.mark.parametrize("type_name", UNFIT)
def test_what_the_column_cannot_hold_is_marked_and_null(oracle: Oracle, type_name: str) -> None:
    fitting = VALUES[type_name][:1]
    query = literals(type_name, fitting + UNFIT[type_name])
    column, text, binary = oracle.both_forms(query, TypeOptions())

    for decoded in (column.decode_text(text), column.decode_binary(binary)):
        assert decoded.unfit is not None
        assert decoded.unfit.tolist() == [False] + [True] * len(UNFIT[type_name]) + [False]
        assert decoded.values.is_null().to_pylist() == [False] + [True] * (len(text) - 1)


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns", "Europe/Amsterdam"])
def test_timestamptz_is_the_same_moment_in_every_session(oracle: Oracle, zone: str) -> None:
    query = literals("timestamptz", VALUES["timestamptz"])
    column, in_utc, _ = oracle.both_forms(query, TypeOptions())
    oracle.connection.execute(f"SET timezone = '{zone}'")
    in_zone, _, _ = oracle.fetch(query)

    assert in_zone != in_utc
    assert identical(column.decode_text(in_zone).values, column.decode_text(in_utc).values)


def test_bytea_in_escape_form(oracle: Oracle) -> None:
    query = literals("bytea", [r"\x00ff5c27", r"\x", r"\x5c78"])
    column, in_hex, _ = oracle.both_forms(query, TypeOptions())
    oracle.connection.execute("SET bytea_output = escape")
    escaped, _, _ = oracle.fetch(query)

    assert escaped[0].as_py() == rb"\000\377\\'"
    assert identical(column.decode_text(escaped).values, column.decode_text(in_hex).values)


@pytest.mark.parametrize("numeric", ["decimal(38,10)", "double"])
def test_numeric_without_precision_as_chosen(oracle: Oracle, numeric: str) -> None:
    values = ["1.5", "12345678901234567890.0123456789", "0.00000000001", "1e40", "NaN", "1e400"]
    query = literals("numeric", values)
    column, text, binary = oracle.both_forms(query, TypeOptions(numeric=numeric))

    decoded = column.decode_text(text)

    assert decoded.unfit is not None
    if numeric == "double":
        assert decoded.unfit.tolist() == [False] * 5 + [True, False]
        assert decoded.values.to_pylist()[1:4] == [1.2345678901234567e19, 1e-11, 1e40]
    else:
        assert decoded.unfit.tolist() == [False, False, True, True, True, True, False]
    assert identical(column.decode_binary(binary).values, decoded.values)
    assert identical(column.decode_spans(Spans.of(binary)).values, decoded.values)


# A query of many random values for each type; the seed is set before it.
RANDOM = {
    "int8": "(random() * 2 - 1) * 9.2e18",
    "float8": "(random() - 0.5) * 10 ^ (random() * 600 - 300)",
    "float4": "(random() - 0.5) * 10 ^ (random() * 70 - 35)",
    "numeric(30,8)": "(random() - 0.5)::numeric * 10 ^ (random() * 21)::int",
    "numeric": "(random()::numeric - 0.5) * 10::numeric ^ (random() * 120 - 60)::int",
    "date": "date '4713-11-24 BC' + (random() * 97000000)::int",
    "timestamp": "timestamp '4713-11-24 BC' + random() * interval '298000 years'",
    "timestamptz": "timestamptz '1850-01-01' + random() * interval '300 years'",
    "bytea": "decode(repeat(md5(random()::text), (random() * 3)::int), 'hex')",
    "uuid": "md5(random()::text)::uuid",
    "time": "time '00:00' + random() * interval '24 hours'",
    "interval": "(random() - 0.5) * interval '3 years' + (random() - 0.5) * interval '40 days'"
    " + (random() - 0.5) * interval '50 hours'",
    "point": "point((random() - 0.5) * 10 ^ (random() * 40 - 20), round(random() * 1e6) / 1000)",
    "real[]": "ARRAY[(random() - 0.5) * 10 ^ (random() * 20 - 10), NULL]",
    # Powers of two, around which the nearest decimals lie half-way.
    "line": "line(point(0, random()), point(1, 2::float8 ^ (random() * 200 - 100)::int))",
    "inet": "('::'::inet + (random() * 1e9)::bigint) + (random() * 1e9)::bigint",
    "int4[]": "array_fill((random() * 1e9)::int, ARRAY[(random() * 4)::int])",
    "text[]": "ARRAY[translate(md5(random()::text), '012345', E',{}\"\\\\ '), NULL,"
    " left('NULLx', (random() * 5)::int)]",
}


@pytest.mark.parametrize("type_name", RANDOM)
def test_many_random_values(oracle: Oracle, type_name: str) -> None:
    oracle.connection.execute("DROP TABLE IF EXISTS many")
    oracle.connection.execute(f"CREATE TEMP TABLE many (n serial, v {type_name})")
    oracle.connection.execute("SELECT setseed(0.5)")
    expression = f"({RANDOM[type_name]})::{type_name}"
    oracle.connection.execute(
        f"INSERT INTO many (v) SELECT {expression} FROM generate_series(1, 2000)"
    )
    column, text, binary = oracle.both_forms("SELECT v FROM many ORDER BY n", TypeOptions())

    decoded = column.decode_text(text)

    assert len(set(text.to_pylist())) > 1000
    assert decoded.unfit is None or type_name == "date"
    assert identical(column.decode_binary(binary).values, decoded.values)
    assert identical(column.decode_spans(Spans.of(binary)).values, decoded.values)
    fits = pa.array(~decoded.unfit if decoded.unfit is not None else np.ones(len(text), bool))
    kept = postgres_text(decoded.values.filter(fits))
    assert oracle.printed(kept, type_name) == text.filter(fits).to_pylist()


def test_enums_and_domains_travel_by_their_definition(oracle: Oracle) -> None:
    oracle.connection.execute("DROP TYPE IF EXISTS pg_temp.mood CASCADE")
    oracle.connection.execute("CREATE TYPE pg_temp.mood AS ENUM ('sad', 'very happy')")
    oracle.connection.execute("CREATE DOMAIN pg_temp.price AS numeric(10,2) CHECK (VALUE > 0)")
    definitions = {}
    query = (
        "SELECT oid, typname, typtype, typelem, typdelim, typbasetype, typtypmod FROM pg_type"
        " WHERE typnamespace = pg_my_temp_schema()"
    )
    for oid, name, kind, element, delimiter, base, typmod in oracle.connection.execute(query):
        definitions[oid] = TypeDefinition(
            oid, "pg_temp", name, kind, element, delimiter, base, typmod
        )
    by_name = {one.name: one.oid for one in definitions.values()}

    moods = resolve_type(by_name["_mood"], -1, definitions)
    text, _, _ = oracle.fetch("SELECT '{sad,\"very happy\",NULL}'::pg_temp.mood[]")
    assert moods.decode_text(text).values.to_pylist() == [["sad", "very happy", None]]
    assert resolve_type(by_name["price"], -1, definitions).spark_ddl == "decimal(10,2)"
    assert resolve_type(by_name["_price"], -1, definitions).spark_ddl == "array<decimal(10,2)>"


def test_the_registry_is_what_pg_type_says(oracle: Oracle) -> None:
    rows = oracle.connection.execute(
        "SELECT oid::bigint, typname, typarray::bigint, typdelim FROM pg_type WHERE oid = ANY(%s)",
        [[entry.oid for entry in ENTRIES]],
    ).fetchall()

    assert sorted(rows) == sorted((e.oid, e.name, e.array_oid, e.delimiter) for e in ENTRIES)


def identical(one: pa.Array, other: pa.Array) -> bool:
    """Equal to the bit: NaN equals NaN, and -0 is not 0."""
    if one.type != other.type:
        return False
    if pa.types.is_floating(one.type):
        return repr(one.to_pylist()) == repr(other.to_pylist())
    return bool(one.equals(other))
