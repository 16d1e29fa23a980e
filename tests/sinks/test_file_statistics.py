"""The smallest and largest values and the NULLs that a file's statistics name are its own."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from pgsluice.sinks.lake.staging import write_files
from pgsluice.stores.local import LocalFolder

LONG = "long " * 10
HUGE = "x" * 10_000
LARGEST = "\U0010ffff"
TYPES = {
    "names": pa.list_(pa.string()),
    "pair": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
    "number": pa.int64(),
    "small": pa.int16(),
    "attributes": pa.map_(pa.string(), pa.int64()),
    "text": pa.string(),
    "price": pa.decimal128(12, 2),
    "other": pa.string(),
    "is_paid": pa.bool_(),
}
SCHEMA = pa.schema(TYPES.items())


def batch(**columns: list[Any]) -> pa.RecordBatch:
    """A batch whose other columns are NULL."""
    count = len(next(iter(columns.values())))
    values = [pa.array(columns.get(name, [None] * count), kind) for name, kind in TYPES.items()]
    return pa.RecordBatch.from_arrays(values, schema=SCHEMA)


def statistics(folder: Path, *batches: pa.RecordBatch) -> dict[str, Any]:
    (file,) = write_files(LocalFolder(folder), batches[0].schema, batches)
    return dict(file.statistics())


@pytest.mark.parametrize(
    ("texts", "bounds"),
    [
        ([["b", "a"], ["c"]], ("a", "c")),
        ([["b", None], [None], ["", "b"]], ("", "b")),
        ([[None], [None]], (None, None)),
        # By their bytes: as UTF-16, the second one would come first.
        ([["\uffff", "\U00010000"]], ("\uffff", "\U00010000")),
        ([["é"], ["z", "\U0010ffff"]], ("z", "\U0010ffff")),
        ([["a"], [LONG]], ("a", LONG[:32] + LARGEST)),
        ([[LONG], [LONG + "!"]], (LONG[:32], LONG[:32] + LARGEST)),
        ([["a" * 32 + LARGEST + "b"]], ("a" * 32, "a" * 32 + LARGEST * 2)),
        ([["a", "b"], [HUGE]], ("", LARGEST * 32)),
        ([[HUGE], ["a"]], ("", LARGEST * 32)),
    ],
)
def test_bounds_of_texts(
    tmp_path: Path, texts: list[list[str | None]], bounds: tuple[str | None, str | None]
) -> None:
    """A long one is cut, and a huge one keeps the bounds from being known."""
    found = statistics(tmp_path, *(batch(text=part) for part in texts))
    assert found["numRecords"] == sum(map(len, texts))
    assert found["nullCount"]["text"] == sum(part.count(None) for part in texts)
    smallest, largest = bounds
    assert found["minValues"].get("text") == smallest
    assert found["maxValues"].get("text") == largest


def test_each_column_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside columns that are several in the file, and in several groups of rows."""
    chance = random.Random(3)
    monkeypatch.setattr(
        "pgsluice.sinks.lake.staging.pq.ParquetWriter.write_batch",
        lambda writer, rows: writer.write_table(pa.Table.from_batches([rows]), row_group_size=70),
    )
    numbers = [chance.choice([None, chance.randint(-(2**63), 2**63 - 1)]) for _ in range(500)]
    smalls = [chance.randint(-(2**15), 2**15 - 1) for _ in range(500)]
    names = [chance.choice([None, f"name {chance.random()}"]) for _ in range(500)]
    found = statistics(
        tmp_path,
        batch(
            number=numbers,
            small=smalls,
            other=names,
            names=[["zz", "aa"]] * 500,
            pair=[{"a": 1, "b": ["q"]}] * 500,
            attributes=[[("k", 7)]] * 500,
        ),
    )
    (path,) = tmp_path.glob("*.parquet")
    assert pq.read_metadata(path).num_row_groups > 5
    for name, values in (("number", numbers), ("small", smalls), ("other", names)):
        there = [value for value in values if value is not None]
        assert found["minValues"][name] == min(there)
        assert found["maxValues"][name] == max(there)
        assert found["nullCount"][name] == len(values) - len(there)
    assert found["minValues"].keys() == found["maxValues"].keys() == {"number", "small", "other"}
    assert found["nullCount"].keys() == TYPES.keys() - {"names", "pair", "attributes"}


TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123_456)
BIG = Decimal("12345678901234567890.123456789012345678")
LAST_DAY = 2_932_896


@pytest.mark.parametrize(
    ("kind", "values", "bounds"),
    [
        (pa.bool_(), [True, False, None], (False, True)),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], ("0001-01-01", "9999-12-31")),
        (pa.date32(), [LAST_DAY + 1], None),
        (pa.timestamp("us"), [TIME], ("2024-02-29T23:59:59.123", "2024-02-29T23:59:59.124")),
        (pa.timestamp("us", "UTC"), [-1], ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")),
        (pa.timestamp("us"), [dt.datetime.max], None),
        (pa.decimal128(10, 2), [Decimal("-1.23"), Decimal("2.37")], (-1.23, 2.37)),
        (pa.decimal128(38, 18), [BIG], (12345678901234500000, 12345678901234600000)),
        (pa.decimal128(38, 18), [Decimal("1e-18")], (0, 0.0001)),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1)], None),
        (pa.float64(), [-0.0, 1e300], (-0.0, 1e300)),
        (pa.float64(), [None, None], None),
        (pa.float32(), [float("-inf"), float("inf")], ("-Infinity", "Infinity")),
        (pa.float64(), [1.0, float("nan")], None),
        (pa.binary(), [b"a"], None),
    ],
)
def test_bounds_of_other_types(
    tmp_path: Path, kind: pa.DataType, values: list[Any], bounds: tuple[Any, Any] | None
) -> None:
    schema = pa.schema({"v": kind})
    (file,) = write_files(
        LocalFolder(tmp_path), schema, [pa.record_batch([pa.array(values, kind)], schema=schema)]
    )
    found = file.statistics()
    if bounds is None:
        assert found["minValues"] == found["maxValues"] == {}
    else:
        assert (found["minValues"]["v"], found["maxValues"]["v"]) == bounds


def test_of_a_wide_table_the_first_columns_and_the_key_have_them(tmp_path: Path) -> None:
    """Other writers of Delta's files leave out those of the others, too."""
    names = [f"c{number}" for number in range(40)]
    schema = pa.schema([pa.field(name, pa.int64(), name != "c39") for name in names])
    rows = pa.RecordBatch.from_arrays([pa.array([7, 3])] * 40, schema=schema)
    found = statistics(tmp_path, rows)
    indexed = {*names[:32], "c39"}
    assert set(found["minValues"]) == set(found["maxValues"]) == set(found["nullCount"]) == indexed
    assert (found["minValues"]["c39"], found["maxValues"]["c39"]) == (3, 7)
    (path,) = tmp_path.glob("*.parquet")
    group = pq.read_metadata(path).row_group(0)
    assert {n for n in range(40) if group.column(n).statistics is not None} == {*range(32), 39}
