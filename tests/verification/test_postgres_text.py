"""The target's formatter prints every value as the server does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.support.examples import examples

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import PgsluiceError
from pgsluice.verification.postgres_text import TextForm, postgres_text

# Before 12 floats are printed with a fixed number of digits.
pytestmark = pytest.mark.pg(">= 12")
PER_SERVER = settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Between two floats whose neighbours lie exactly on a shorter decimal, at the ends of the
# plain notation, the smallest and the largest.
EDGES = [
    0.0, -0.0, 1.0, -1.5, 0.1, 1e14, 999999999999999.0, 1e15, 1e16, 123456789012345680.0,
    18014398509481992.0, -18014398509481992.0, 9007199254740993.0, 2.0**60, 2.0**70, 1e22, 1e23,
    0.0001, 0.00012345, 1e-5, 1e-7, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308,
    float("nan"), float("inf"), float("-inf"), 2.0**54 - 2, 2.0**54, 4.35, 1 / 3,
]  # fmt: skip


@pytest.fixture(scope="module")
def connection(server: EmbeddedServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            "SET extra_float_digits = 3; SET TimeZone = 'UTC'; SET DateStyle = 'ISO'"
        )
        yield connection


def printed(connection: psycopg.Connection[Any], expression: str, values: list[Any]) -> list[str]:
    """What the server prints for each value."""
    return [
        text
        for (text,) in connection.execute(
            f"SELECT concat({expression}) FROM unnest(%b::{_PARAMETER[expression]}[])"
            " WITH ORDINALITY AS given(v, place) ORDER BY place",
            [values],
        )
    ]


_PARAMETER = {
    "v": "float8",
    "v::float4": "float8",
    "date '1970-01-01' + v::int": "int8",
    "timestamp '1970-01-01' + v::interval": "text",
    "timestamptz '1970-01-01 00:00+00' + v::interval": "text",
    "v::numeric(38,20)": "text",
}


@PER_SERVER
@example(EDGES)
@given(st.lists(st.floats() | st.integers(-(10**25), 10**25).map(float), max_size=60))
def test_double_precision(connection: psycopg.Connection[Any], values: list[float]) -> None:
    ours = postgres_text(pa.array(values, pa.float64())).to_pylist()
    assert ours == printed(connection, "v", values)


@PER_SERVER
@example([float(np.float32(edge)) for edge in EDGES if not 1e38 < abs(edge) < 1e309])
@example([float(np.float32(2**24 + 2 * i)) for i in range(40)])
@example([float(np.float32(10**8 + 8 * i)) for i in range(60)])
@given(
    st.lists(
        st.floats(width=32) | st.integers(-(10**12), 10**12).map(np.float32).map(float),
        max_size=60,
    )
)
def test_real(connection: psycopg.Connection[Any], values: list[float]) -> None:
    ours = postgres_text(pa.array(values, pa.float32())).to_pylist()
    assert ours == printed(connection, "v::float4", values)


@pytest.mark.parametrize("spacing", range(54, 66))
def test_doubles_where_the_middle_between_two_is_short(
    connection: psycopg.Connection[Any], spacing: int
) -> None:
    values = [float(2**spacing + i * 2 ** (spacing - 52)) for i in range(-40, 120)]
    ours = postgres_text(pa.array(values, pa.float64())).to_pylist()
    assert ours == printed(connection, "v", values)


@PER_SERVER
@example([-719_528, -719_163, -719_162, -719_161, 2_932_896, 2_932_897, -2_440_587, 0])
@given(st.lists(st.integers(-2_440_587, 100_000_000), max_size=40))
def test_date(connection: psycopg.Connection[Any], days: list[int]) -> None:
    ours = postgres_text(pa.array(days, pa.int32()).cast(pa.date32())).to_pylist()
    assert ours == printed(connection, "date '1970-01-01' + v::int", days)


def intervals(micros: list[int]) -> list[str]:
    """As clock times: before 15, a number of microseconds must fit in 32 bits."""
    texts = []
    for one in micros:
        days, clock = divmod(one, 86_400_000_000)
        seconds, fraction = divmod(clock, 1_000_000)
        hours, seconds = divmod(seconds, 3600)
        clock_text = f"{hours}:{seconds // 60:02}:{seconds % 60:02}.{fraction:06}"
        texts.append(f"{days} days {clock_text}")
    return texts


MICROS = st.lists(
    st.integers(-210_866_803_200_000_000, 9_000_000_000_000_000_000)
    | st.integers(-(2 * 10**12), 10**13).map(lambda n: n * 100_000)
    | st.datetimes().map(
        lambda t: int((t - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1))
    ),
    max_size=40,
)


@PER_SERVER
@example([0, -1, 1, 100_000, 10_000_000, -62_135_596_800_000_001, 253_402_300_800_000_000])
@given(MICROS)
def test_timestamp(connection: psycopg.Connection[Any], micros: list[int]) -> None:
    ours = postgres_text(pa.array(micros, pa.timestamp("us"))).to_pylist()
    expression = "timestamp '1970-01-01' + v::interval"
    assert ours == printed(connection, expression, intervals(micros))


@PER_SERVER
@example([0, -1, -62_135_596_800_000_001, 253_402_300_800_000_000])
@given(MICROS)
def test_timestamp_with_time_zone(connection: psycopg.Connection[Any], micros: list[int]) -> None:
    ours = postgres_text(pa.array(micros, pa.timestamp("us", "UTC"))).to_pylist()
    expression = "timestamptz '1970-01-01 00:00+00' + v::interval"
    assert ours == printed(connection, expression, intervals(micros))


@PER_SERVER
@example([Decimal("0"), Decimal("1E-20"), Decimal("-1E-20"), Decimal("999999999999999999")])
@given(st.lists(st.decimals(-(10**18), 10**18, places=20, allow_nan=False), max_size=20))
def test_numeric(connection: psycopg.Connection[Any], values: list[Decimal]) -> None:
    values = [value for value in values if abs(value) < 10**18]
    ours = postgres_text(pa.array(values, pa.decimal128(38, 20))).to_pylist()
    theirs = printed(connection, "v::numeric(38,20)", [format(value, "f") for value in values])
    assert ours == theirs


TEXTS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"))


@PER_SERVER
@example([None, "", "null", "NuLl", "a b", "a,b", "{x}", '"', "\\", "\t", "\x0b", "é ", "\xa0"])
@example([])
@given(st.lists(st.none() | TEXTS, max_size=8))
def test_array_of_text(connection: psycopg.Connection[Any], values: list[str | None]) -> None:
    ours = postgres_text(pa.array([values], pa.list_(pa.string()))).to_pylist()
    row = connection.execute("SELECT concat(%s::text[])", [values]).fetchone()
    assert row is not None
    assert ours == [row[0]]


@pytest.mark.parametrize(
    ("sql", "array", "form"),
    [
        ("true", pa.array([True]), None),
        ("false", pa.array([False]), None),
        ("'{t,f,NULL}'::bool[]", pa.array([[True, False, None]]), None),
        (r"'\x00ff10'::bytea", pa.array([b"\x00\xff\x10"]), None),
        ("''::bytea", pa.array([b""]), None),
        (r"ARRAY['\x00'::bytea, '']", pa.array([[b"\x00", b""]]), None),
        ("'{1.5,NaN,-Infinity,1e-05}'::float8[]",
         pa.array([[1.5, float("nan"), float("-inf"), 1e-5]]), None),
        ("'{1,-2,NULL}'::int8[]", pa.array([[1, -2, None]]), None),
        ("ARRAY[1.50, NULL]::numeric(10,2)[]",
         pa.array([[Decimal("1.5"), None]], pa.list_(pa.decimal128(10, 2))), None),
        ("ARRAY['2024-01-02 03:04:05.60+00'::timestamptz]",
         pa.array([[1704164645600000]], pa.list_(pa.timestamp("us", "UTC"))), None),
        ("'{(2,2),(1,1);(4,4),(3,3)}'::box[]",
         pa.array([["(2,2),(1,1)", "(4,4),(3,3)"]]), TextForm(delimiter=";")),
        ("'ab '::char(4)", pa.array(["ab  "]), None),
    ],
)  # fmt: skip
def test_one_value(
    connection: psycopg.Connection[Any], sql: str, array: pa.Array, form: TextForm | None
) -> None:
    row = connection.execute(f"SELECT concat({sql})").fetchone()
    assert row is not None
    assert postgres_text(array, form).to_pylist() == [row[0]]


@pytest.mark.parametrize(
    "kind",
    [pa.string_view(), pa.large_string(), pa.binary_view(), pa.date32(), pa.timestamp("us"),
     pa.float32(), pa.float64(), pa.int16(), pa.bool_(), pa.decimal128(38, 30),
     pa.list_(pa.string_view()), pa.large_list(pa.float64())],
    ids=str,
)  # fmt: skip
def test_null_stays_null_and_slices_are_minded(kind: pa.DataType) -> None:
    nulls = pa.nulls(3, kind)
    assert postgres_text(nulls).to_pylist() == [None, None, None]
    assert postgres_text(nulls.slice(1, 1)).to_pylist() == [None]
    assert postgres_text(nulls.slice(0, 0)).to_pylist() == []


def test_a_slice_of_an_array_with_nulls_between() -> None:
    array = pa.array([["a"], None, ["b", None], [], ["c d"]], pa.list_(pa.string()))
    assert postgres_text(array.slice(1)).to_pylist() == [None, "{b,NULL}", "{}", '{"c d"}']


def test_the_text_form_before_12() -> None:
    form = TextForm(shortest_floats=False)
    assert postgres_text(pa.array([0.1, 5.0]), form).to_pylist() == ["0.100000000000000006", "5"]
    assert postgres_text(pa.array([0.1], pa.float32()), form).to_pylist() == ["0.100000001"]


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(PgsluiceError, match=r"duration.*cannot be compared"):
        postgres_text(pa.array([1], pa.duration("s")))
