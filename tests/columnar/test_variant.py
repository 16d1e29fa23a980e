"""VARIANT from Arrow columns, decoded by Spark's own Python reader."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from pgsluice.columnar.variant import encode_objects
from pgsluice.errors import TableError

UTC = dt.UTC


def objects(columns: dict[str, pa.Array], absent: dict[str, list[bool]] | None = None) -> list[Any]:
    """The encoded rows, decoded by Spark's reader."""
    count = len(next(iter(columns.values())))
    masks = {name: np.array(mask) for name, mask in (absent or {}).items()}
    encoded = encode_objects(list(columns), columns, masks, np.ones(count, np.bool_))
    encoded.validate(full=True)
    with localcontext(prec=40):  # Spark's Python reader computes decimals with this precision
        return [VariantVal(r["value"], r["metadata"]).toPython() for r in encoded.to_pylist()]


@pytest.mark.parametrize(
    ("arrow", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int16(), [-(2**15), 2**15 - 1]),
        (pa.int32(), [-(2**31), 2**31 - 1]),
        (pa.int64(), [-(2**63), 2**63 - 1]),
        (pa.float32(), [1.5, -0.0]),
        (pa.float64(), [0.1, math.inf, -math.inf]),
        (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.00")]),
        (pa.decimal128(18, 0), [Decimal(10**18 - 1), Decimal(1 - 10**18)]),
        (
            pa.decimal128(38, 10),
            [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0.0000000001")],
        ),
        (pa.string(), ["", "é", "x" * 63, "x" * 64, "é" * 32, "y" * 70_000]),
        (pa.large_string(), ["", "z" * 300]),
        (pa.binary(), [b"", bytes(range(256)) * 3]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        (pa.timestamp("us"), [dt.datetime(1, 1, 1), dt.datetime(2026, 5, 4, 3, 2, 1, 7)]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)]),
        (pa.list_(pa.int32()), [[], [1, None, 3], [7] * 300]),
        (pa.list_(pa.string()), [["a" * 100, None, ""], [None]]),
        (pa.null(), [None]),
    ],
    ids=str,
)
def test_types_stay_exact(arrow: pa.DataType, values: list[Any]) -> None:
    given_values = [None, *values, None]
    array = pa.array(given_values, arrow)
    rows = objects({"c": array, "id": pa.array(range(len(array)), pa.int64())})
    assert [row["c"] for row in rows] == given_values
    assert [row["id"] for row in rows] == list(range(len(array)))
    # A slice of a larger array gives the same values.
    sliced = pa.concat_arrays([array, array]).slice(1, len(array))
    assert [row["c"] for row in objects({"c": sliced})] == sliced.to_pylist()


def test_nan_is_kept() -> None:
    (row,) = objects({"c": pa.array([math.nan])})
    assert math.isnan(row["c"])


def test_absent_columns_are_left_out() -> None:
    columns = {"b": pa.array([None, "x", "y"]), "a": pa.array([1, 2, 3])}
    absent = {"b": [True, False, True], "a": [False, False, True]}
    assert objects(columns, absent) == [{"a": 1}, {"a": 2, "b": "x"}, {}]


def test_excluded_rows_are_null() -> None:
    rows = np.array([True, False])
    encoded = encode_objects(["a"], {"a": pa.array([1, 2])}, {}, rows)
    assert encoded.is_null().to_pylist() == [False, True]


def test_names_are_sorted_by_their_bytes() -> None:
    names = ["z", "Ä", "a", "", "say `hi`", "𐍈", "\uffee"]
    columns = {name: pa.array([number]) for number, name in enumerate(names)}
    (row,) = objects(columns)
    assert row == {name: number for number, name in enumerate(names)}
    assert list(row) == sorted(names, key=str.encode)


def test_many_names_are_in_the_order_in_which_spark_searches_them() -> None:
    names = ["𐍈", "\uffee", *(f"c{number}" for number in range(30))]
    columns = {name: pa.array([number]) for number, name in enumerate(names)}
    (row,) = objects(columns)
    assert row == {name: number for number, name in enumerate(names)}
    assert list(row) == sorted(names, key=lambda name: name.encode("utf-16-be"))


@pytest.mark.parametrize("count", [1, 31, 32, 33, 255, 256, 300, 1600])
def test_any_number_of_columns(count: int) -> None:
    columns = {f"column_{number}": pa.array([number, None]) for number in range(count)}
    first, second = objects(columns)
    assert first == {f"column_{number}": number for number in range(count)}
    assert set(second.values()) == {None}


def test_no_rows() -> None:
    assert objects({"a": pa.array([], pa.int64()), "l": pa.array([], pa.list_(pa.int8()))}) == []


def test_a_type_without_a_variant_form_is_refused() -> None:
    with pytest.raises(TableError, match='column "c", of the Arrow type'):
        objects({"c": pa.array([1], pa.uint64())})


VALUES = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=80),
        "l": st.none() | st.lists(st.none() | st.text(max_size=70), max_size=5),
        "b": st.none() | st.binary(max_size=80),
    }
)
TYPES = {"i": pa.int64(), "s": pa.string(), "l": pa.list_(pa.string()), "b": pa.binary()}


@given(st.lists(st.tuples(VALUES, st.sets(st.sampled_from("islb"))), min_size=1, max_size=20))
def test_decoding_reverses_encoding(rows: list[tuple[dict[str, Any], set[str]]]) -> None:
    columns = {name: pa.array([row[name] for row, _ in rows], kind) for name, kind in TYPES.items()}
    absent = {name: [name in left_out for _, left_out in rows] for name in TYPES}
    expected = [{k: v for k, v in row.items() if k not in left_out} for row, left_out in rows]
    assert objects(columns, absent) == expected
