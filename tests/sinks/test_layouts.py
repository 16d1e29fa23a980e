"""``partition_by`` and ``cluster_by``: which rows share files, and in which order."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.support.delta_spark import delta_spark
from tests.support.object_stores import ObjectStore

from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.delta.log.reading import KNOWN_TABLES
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.lake.layout.layout import MOST_PARTITIONS
from pgsluice.sinks.lake.upkeep import FILES_OF_A_SIZE
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_contract import TABLE, SinkContract, identity, net

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("note", pa.string()),
    ]
)
ORDERS = TargetTable("public", "orders", SCHEMA, ("id",))
TERMS = ("region", "month(at)")


class PartitionedContract(SinkContract):
    """All rules of targets, for tables that are partitioned by a column that updates change."""

    merge: Literal["on_read", "on_write"]

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        terms = {f"public.{name}": ("a",) for name in ("t", "keyless")}
        clusters = {"public.t": ("big",)}
        return DeltaSink(
            f"{tmp_path}/lake/{{schema}}/{{table}}",
            merge=self.merge,
            partition_by=terms,
            cluster_by=clusters,
            cache_dir=f"{tmp_path}/cache",
        )

    @pytest.mark.skip("its table lacks the partition column")
    def test_a_copy_with_another_key_replaces_all_rows(self, sink: Sink) -> None:
        """Of a target that keeps deleted rows."""

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        handle = DeltaTable(sink.location(table.namespace, table.name))
        return pa.RecordBatchReader.from_stream(handle.scan()).read_all().to_pylist()


@pytest.mark.soak
class TestOnRead(PartitionedContract):
    merge = "on_read"


@pytest.mark.soak
class TestOnWrite(PartitionedContract):
    merge = "on_write"


@pytest.mark.soak
class TestInStoreOnRead(PartitionedContract):
    """The same in an object store."""

    merge = "on_read"

    @pytest.fixture
    def sink(self, s3_store: ObjectStore, tmp_path: Path) -> Sink:
        return DeltaSink(
            f"s3://lake/{uuid.uuid4()}/{{schema}}/{{table}}",
            merge=self.merge,
            partition_by={f"public.{name}": ("a",) for name in ("t", "keyless")},
            cluster_by={"public.t": ("big",)},
            cache_dir=f"{tmp_path}/cache",
            storage_options=s3_store.options,
        )

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        assert isinstance(sink, DeltaSink)
        location = sink.location(table.namespace, table.name)
        handle = DeltaTable(location, storage_options=sink.storage_options)
        return pa.RecordBatchReader.from_stream(handle.scan()).read_all().to_pylist()


@pytest.mark.soak
class TestInStoreOnWrite(TestInStoreOnRead):
    merge = "on_write"


def order(id_: int, region: str | None, at: str | None, note: Any = "n") -> dict[str, Any]:
    time = None if at is None else dt.datetime.fromisoformat(at).replace(tzinfo=dt.UTC)
    return {"id": id_, "region": region, "at": time, "note": note}


def changes() -> ChangesBuilder:
    return ChangesBuilder(SCHEMA, ("id",))


@pytest.fixture(params=["on_read", "on_write"])
def sink(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaSink:
    return DeltaSink(
        f"{tmp_path}/{{table}}",
        merge=request.param,
        partition_by={"public.orders": TERMS},
        cache_dir=f"{tmp_path}/cache",
    )


def writer(sink: DeltaSink, copy: int = 1) -> TableWriter:
    return TableWriter(sink, ORDERS, identity(copy=copy))


def loaded(sink: DeltaSink, *rows: dict[str, Any], position: int = 100, copy: int = 1) -> None:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    writer(sink, copy).load(table.to_batches(), Lsn(position))


def rows(sink: DeltaSink) -> list[dict[str, Any]]:
    table = DeltaTable(sink.location("public", "orders"))
    read = pa.RecordBatchReader.from_stream(table.scan()).read_all()
    assert sorted(pl.scan_delta(table).collect().to_dicts(), key=lambda r: r["id"]) == sorted(
        read.to_pylist(), key=lambda r: r["id"]
    )
    return sorted(read.to_pylist(), key=lambda row: int(row["id"]))


def partitions(sink: DeltaSink) -> list[tuple[Any, ...]]:
    table = DeltaTable(sink.location("public", "orders"))
    return sorted(
        ((each["region"], each["at_month"]) for each in table.partitions()),
        key=lambda each: tuple(map(str, each)),
    )


def test_rows_that_an_update_moves_between_partitions(sink: DeltaSink) -> None:
    first = [
        order(1, "EU", "2026-01-31 23:59:59"),
        order(2, "EU", "2026-02-01 00:00:00"),
        order(3, None, None),
        order(4, "a/b=c %", "0044-03-15 12:00:00"),
    ]
    loaded(sink, *first)
    table = DeltaTable(sink.location("public", "orders"))
    assert table.metadata().partition_columns == ["region", "at_month"]
    assert [row["at_month"] for row in rows(sink)] == ["2026-01", "2026-02", None, "0044-03"]
    t = changes()
    t.update({**order(1, "US", "2026-01-31 23:59:59"), "note": ABSENT})
    t.delete({"id": 3})
    t.insert(order(5, "EU", "2026-02-02 00:00:00"))
    writer(sink).apply(net(t, table=ORDERS), Lsn(110))
    assert rows(sink) == [
        {**order(1, "US", "2026-01-31 23:59:59"), "at_month": "2026-01"},
        {**first[1], "at_month": "2026-02"},
        {**first[3], "at_month": "0044-03"},
        {**order(5, "EU", "2026-02-02 00:00:00"), "at_month": "2026-02"},
    ]
    assert partitions(sink) == [("EU", "2026-02"), ("US", "2026-01"), ("a/b=c %", "0044-03")]


def updated(sink: DeltaSink, *orders: dict[str, Any], position: int) -> None:
    """Apply updates, as a process that has not seen the table before."""
    KNOWN_TABLES.clear()
    t = changes()
    for each in orders:
        t.update(each)
    writer(sink).apply(net(t, table=ORDERS), Lsn(position))


def test_files_that_deltalake_has_joined_lack_the_columns(sink: DeltaSink) -> None:
    loaded(sink, order(1, "EU", None), order(2, "US", "2026-02-02"))
    t = changes()
    t.insert(order(3, "US", "2026-02-03"))
    writer(sink).apply(net(t, table=ORDERS), Lsn(110))
    table = DeltaTable(sink.location("public", "orders"))
    assert table.optimize.compact()["numFilesRemoved"] == 2
    KNOWN_TABLES.clear()
    t = changes()
    t.update({**order(3, "US", "2026-03-03"), "region": ABSENT})
    writer(sink).apply(net(t, table=ORDERS), Lsn(120))
    assert rows(sink) == [
        {**order(1, "EU", None), "at_month": None},
        {**order(2, "US", "2026-02-02"), "at_month": "2026-02"},
        {**order(3, "US", "2026-03-03"), "at_month": "2026-03"},
    ]


def test_another_setting_needs_a_copy(sink: DeltaSink) -> None:
    loaded(sink, order(1, "EU", "2026-01-31"))
    other = replace(sink, partition_by={"public.orders": ("day(at)",)})
    with pytest.raises(TableError, match=r"by region, month.at., but .* has day.at.") as raised:
        updated(other, order(1, "US", "2026-01-31"), position=110)
    assert "pgsluice copy CONFIG public.orders" in (raised.value.hint or "")
    assert writer(other).adoptable() is None
    loaded(other, order(1, "US", "2026-01-31"), position=200, copy=2)
    assert rows(sink) == [{**order(1, "US", "2026-01-31"), "at_day": "2026-01-31"}]
    none = replace(sink, partition_by={})
    loaded(none, order(1, "US", "2026-01-31"), position=300, copy=3)
    assert rows(sink) == [order(1, "US", "2026-01-31")]


@pytest.mark.parametrize(
    ("terms", "cluster", "why"),
    [
        (("place",), (), "place, but there is no such column"),
        (("year(region)",), (), r"year.region., but this column is string .* can be times"),
        (("at",), (), r"at, but this column is timestamp\[us, tz=UTC\] .* it can be text"),
        (("id", "region", "at_month", "note"), (), "at_month, but there is no such column"),
        (("region",), ("place",), "`cluster_by` .* place, but there is no such column"),
    ],
)
def test_columns_that_cannot_partition(
    sink: DeltaSink, terms: tuple[str, ...], cluster: tuple[str, ...], why: str
) -> None:
    sink = replace(
        sink, partition_by={"public.orders": terms}, cluster_by={"public.orders": cluster}
    )
    with pytest.raises(TableError, match=why):
        loaded(sink, order(1, "EU", None))
    assert writer(sink).version() == -1


def test_values_that_cannot_be_in_a_partition(sink: DeltaSink) -> None:
    with pytest.raises(TableError, match="an empty text, which readers take for NULL"):
        loaded(sink, order(1, "", None))
    many = (order(id_, str(id_), None) for id_ in range(MOST_PARTITIONS + 1))
    with pytest.raises(TableError, match=f"more than {MOST_PARTITIONS} values in the partition"):
        loaded(sink, *many)


def test_a_column_with_the_name_of_a_part(sink: DeltaSink) -> None:
    loaded(sink, order(1, "EU", "2026-01-31"))
    t = ChangesBuilder(SCHEMA.append(pa.field("AT_Month", pa.string())), ("id",))
    t.insert({**order(2, "EU", "2026-01-31"), "AT_Month": "x"})
    with pytest.raises(TableError, match="the table already has a column AT_Month"):
        writer(sink).apply(net(t, table=replace(ORDERS, schema=t.schema)), Lsn(110))


def test_small_files_are_joined_within_their_partition(sink: DeltaSink) -> None:
    loaded(sink, *(order(id_, "EU" if id_ % 2 else "US", None) for id_ in range(20)))
    for number in range(25):  # a checkpoint is written, too
        updated(sink, order(2, "US", None, str(number)), position=110 + number)
        writer(sink).maintain([])
    table = DeltaTable(sink.location("public", "orders"))
    assert len(table.file_uris()) < 2 * FILES_OF_A_SIZE
    assert partitions(sink) == [("EU", None), ("US", None)]
    assert rows(sink)[2] == {**order(2, "US", None, "24"), "at_month": None}


def test_rows_of_new_files_are_sorted(sink: DeltaSink) -> None:
    sink = replace(sink, partition_by={}, cluster_by={"public.orders": ("note", "id")})
    loaded(sink, *(order(id_, "EU", None, str(-id_ % 3)) for id_ in range(9)))
    table = DeltaTable(sink.location("public", "orders"))
    read = pq.read_table(table.file_uris()[0])
    assert read["id"].to_pylist() == [0, 3, 6, 2, 5, 8, 1, 4, 7]
    other = replace(sink, cluster_by={"public.orders": ("region", "id")})
    updated(other, *(order(id_, str(-id_), None) for id_ in range(9)), position=110)
    updated(other, *(order(id_, str(-id_), None) for id_ in range(9)), position=120)
    table = DeltaTable(sink.location("public", "orders"))
    read = pq.read_table(table.file_uris()[0])
    assert read["region"].to_pylist() == sorted(str(-id_) for id_ in range(9))


@pytest.mark.soak
def test_spark_reads_and_joins_files_of_partitions(sink: DeltaSink, tmp_path: Path) -> None:
    """Spark's files lack the partition columns, and lie in folders of their own."""
    loaded(sink, order(1, "EU", "2026-01-31"), order(2, None, None), order(3, "a/b=c %", None))
    updated(sink, order(3, "EU", "2026-01-30", "moved"), position=110)
    table = f"delta.`{sink.location('public', 'orders')}`"
    with delta_spark(tmp_path) as spark:
        where = "WHERE region = 'EU' AND at_month = '2026-01'"
        found = spark.rows(f"SELECT id, note FROM {table} {where} ORDER BY id")
        assert found == [{"id": 1, "note": "n"}, {"id": 3, "note": "moved"}]
        spark.sql(f"OPTIMIZE {table}")
        updated(sink, order(1, "US", "2025-01-31", "again"), position=120)
        found = spark.rows(f"SELECT id, region, at_month, note FROM {table} ORDER BY id")
    assert found == [
        {name: row[name] for name in ("id", "region", "at_month", "note")} for row in rows(sink)
    ]
    assert [row["region"] for row in rows(sink)] == ["US", None, "EU"]


def test_properties_come_with_the_next_commit_and_stay(tmp_path: Path) -> None:
    def properties(given: dict[str, str], position: int) -> dict[str, str]:
        sink = DeltaSink(f"{tmp_path}/{{table}}", table_properties={"public.orders": given})
        if position == 100:
            loaded(sink, order(1, "EU", None))
        else:
            t = changes()
            t.insert(order(position, "EU", None))
            writer(sink).apply(net(t, table=ORDERS), Lsn(position))
        found = DeltaTable(sink.location("public", "orders")).metadata().configuration
        return {name: found[name] for name in ("owner", "delta.targetFileSize") if name in found}

    size = {"delta.targetFileSize": "1000000"}
    first = properties({"owner": "sales", **size}, 100)
    assert first == {"owner": "sales", **size}
    assert properties({"owner": "büro"}, 110) == {"owner": "büro", **size}
    assert properties({}, 120) == {"owner": "büro", **size}
