"""Readers skip files by their statistics, and find each row that a condition holds for.

The oracles are the readers: deltalake's PyArrow dataset, polars, and Spark with Delta's jar.
"""

from __future__ import annotations

import datetime as dt
import operator
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from tests.support.delta_spark import delta_spark

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_contract import identity, net

BEGIN = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "truth": (pa.bool_(), lambda n: n % 3 == 0),
    "small": (pa.int16(), lambda n: n - 40),
    "day": (pa.date32(), lambda n: dt.date(1999, 12, 1) + dt.timedelta(days=n)),
    "at": (
        pa.timestamp("us", "UTC"),
        lambda n: BEGIN + dt.timedelta(days=7000 * n, microseconds=n),
    ),
    "clock": (pa.timestamp("us"), lambda n: dt.datetime(2024, 1, 1, 0, 0, 0, 1001 * n)),
    "single": (pa.float32(), lambda n: n / 7 - 5),
    "double": (pa.float64(), lambda n: float("inf") if n == 78 else n / 7 - 5),
    "wild": (pa.float64(), lambda n: float("nan") if n % 10 == 0 else n / 7),
    "price": (pa.decimal128(12, 2), lambda n: Decimal(n - 40) / 4),
    "exact": (pa.decimal128(38, 18), lambda n: Decimal(n - 40) / 3 + Decimal("1e18")),
    "huge": (pa.decimal128(38, 0), lambda n: Decimal(10) ** 30 * n + n),
    "word": (pa.string(), lambda n: f"word {n:02}"),
    "text": (pa.string(), lambda n: f"{'x' * 40} {n:02}"),
    "essay": (pa.string(), lambda n: f"{n:02}" + "x" * 9000),
}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False)]
    + [pa.field(name, kind) for name, (kind, _) in KINDS.items()]
)
TABLE = TargetTable("public", "t", SCHEMA, ("id",))
COMPARISONS = {"=": operator.eq, "<=": operator.le, ">": operator.gt}


def row(number: int) -> dict[str, Any]:
    """Each eighth row is NULL."""
    values = {
        name: None if number % 8 == 7 else value(number) for name, (_, value) in KINDS.items()
    }
    return {"id": number, **values}


def table_in_files(folder: Path) -> pa.Table:
    """A target with a file for each ten rows; returns its rows."""
    rows = pa.Table.from_pylist([row(number) for number in range(80)], schema=SCHEMA)
    sink = DeltaSink(f"{folder}/{{table}}", merge="on_write", cache_dir=f"{folder}/cache")
    TableWriter(sink, TABLE, identity()).load(rows.slice(0, 10).to_batches(), Lsn(100))
    for first in range(10, 80, 10):
        changes = ChangesBuilder(SCHEMA, ("id",))
        for each in rows.slice(first, 10).to_pylist():
            changes.insert(each)
        TableWriter(sink, TABLE, identity()).apply(net(changes, table=TABLE), Lsn(100 + first))
    return rows


def order(value: Any) -> Any:
    """NaN is the largest number, and equal to itself."""
    return (value != value, 0.0 if value != value else value)


def conditions(rows: pa.Table) -> list[tuple[str, str, pa.Scalar, list[int]]]:
    """A column, a comparison and a value each, with the rows that it holds for."""
    chance = random.Random(11)
    found = []
    for name, (kind, _) in KINDS.items():
        for number in chance.sample([n for n in range(80) if n % 8 != 7], 4):
            value = rows.column(name)[number]
            for sign, compare in COMPARISONS.items():
                held = [
                    each["id"]
                    for each in rows.select(["id", name]).to_pylist()
                    if each[name] is not None and compare(*map(order, (each[name], value.as_py())))
                ]
                found.append((name, sign, pa.scalar(value.as_py(), kind), held))
    return found


def test_rows_that_a_condition_holds_for(tmp_path: Path) -> None:
    rows = table_in_files(tmp_path)
    table = DeltaTable(tmp_path / "t")
    assert len(table.file_uris()) == 8
    dataset = table.to_pyarrow_dataset()
    frame = pl.scan_delta(table)
    for name, sign, value, held in conditions(rows):
        compare = COMPARISONS[sign]
        wanted = pl.lit(pl.from_arrow(pa.array([value.as_py()], value.type)))
        chosen = frame.filter(compare(pl.col(name), wanted)).select("id").collect()
        assert sorted(chosen["id"]) == held, (name, sign, value)
        if name == "wild":  # without bounds, which deltalake's dataset does not expect
            continue
        read = dataset.to_table(columns=["id"], filter=compare(pc.field(name), value))
        assert sorted(read["id"].to_pylist()) == held, (name, sign, value)


SPARK_TYPES = {
    "truth": "BOOLEAN",
    "small": "SMALLINT",
    "day": "DATE",
    "at": "TIMESTAMP",
    "clock": "TIMESTAMP_NTZ",
    "single": "FLOAT",
    "double": "DOUBLE",
    "wild": "DOUBLE",
    "price": "DECIMAL(12,2)",
    "exact": "DECIMAL(38,18)",
    "huge": "DECIMAL(38,0)",
}


@pytest.mark.soak
def test_rows_that_spark_finds(tmp_path: Path) -> None:
    rows = table_in_files(tmp_path)
    with delta_spark(tmp_path) as spark:
        for name, sign, value, held in conditions(rows):
            literal = f"CAST('{value.as_py()}' AS {SPARK_TYPES.get(name, 'STRING')})"
            query = f"SELECT id FROM delta.`{tmp_path}/t` WHERE {name} {sign} {literal} ORDER BY id"
            assert [each["id"] for each in spark.rows(query)] == held, (name, sign, value)
