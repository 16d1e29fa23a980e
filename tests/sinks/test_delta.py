"""The Delta sink, engine native."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.waiting import HANGS_S

from pgsluice.errors import Failure, Remedy, TableError, TargetUnreachable
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, Overtaken, Sink, TargetTable
from pgsluice.sinks.delta.log.reading import KNOWN_TABLES
from pgsluice.sinks.delta.ruled.handle import MANY_SMALL_FILES
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.delta.upkeep import MANY_COMMITS
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.lake.staging import write_files
from pgsluice.stores.local import LocalFolder
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_contract import (
    SCHEMA,
    TABLE,
    SinkContract,
    batches,
    changes,
    identity,
    net,
    row,
)
from pgsluice.types import TypeOptions, resolve_type
from pgsluice.types.calendar import days_from_civil
from pgsluice.types.datetimes import DATE, TIMESTAMP, TIMESTAMPTZ
from pgsluice.types.nested.variants import ARROW
from pgsluice.verification.postgres_text import postgres_text


@pytest.fixture
def through_deltalake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are written as those with rules of others are."""
    monkeypatch.setattr("pgsluice.sinks.delta.sink.has_rules_of_others", lambda snapshot: True)


@pytest.fixture(params=["ours", "deltalake"])
def each_way(request: pytest.FixtureRequest) -> None:
    """Commits of our own, and those that deltalake makes."""
    if request.param == "deltalake":
        request.getfixturevalue("through_deltalake")


class TestContract(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(f"{tmp_path}/lake/{{schema}}/{{table}}", merge="on_write")

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        handle = DeltaTable(sink.location(table.namespace, table.name))
        return handle.to_pyarrow_table().to_pylist()


@pytest.mark.usefixtures("through_deltalake")
class TestContractThroughDeltalake(TestContract):
    """A table with rules that only deltalake knows."""


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return DeltaSink(f"{tmp_path}/{{table}}", merge="on_write")


def location(sink: DeltaSink) -> str:
    return sink.location("public", "t")


def writer_of(sink: DeltaSink, table: TargetTable = TABLE, *, copy: int = 1) -> TableWriter:
    return TableWriter(sink, table, identity(copy=copy))


def load(sink: DeltaSink, *rows: dict[str, Any]) -> Applied:
    return writer_of(sink).load(batches(*rows), Lsn(100))


def apply_and_maintain(sink: DeltaSink, n: int, lsn: int) -> Applied:
    """A batch, as a task has it: the row with the id 1 gets another value."""
    t = changes()
    t.update(row(1, n))
    writer = writer_of(sink)
    applied = writer.apply(net(t), Lsn(lsn))
    writer.maintain([])
    return applied


def maintain(writer: TableWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintain a table as after many commits."""
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.MANY_COMMITS", 1)
    writer.maintain([])


def insert(sink: DeltaSink, id_: int, lsn: int) -> Applied:
    t = changes()
    t.insert(row(id_))
    return writer_of(sink).apply(net(t), Lsn(lsn))


class TestForeignCommits:
    """Others may maintain a table, but not change its data."""

    def test_an_optimize_and_a_vacuum_are_allowed(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        insert(sink, 2, 110)
        handle = DeltaTable(location(sink))
        handle.optimize.compact()
        handle.vacuum(0, dry_run=False, enforce_retention_duration=False)
        handle.alter.set_table_properties({"delta.appendOnly": "false"})
        assert not insert(sink, 3, 120).skipped
        assert writer_of(sink).position() == 120

    def test_after_an_optimize_between_open_and_commit_the_write_is_repeated(
        self, sink: DeltaSink
    ) -> None:
        load(sink, row(1))
        insert(sink, 2, 110)
        writer = writer_of(sink)
        writer.position()
        DeltaTable(location(sink)).optimize.compact()
        t = changes()
        t.update(row(1, 5))
        assert not writer.apply(net(t), Lsn(120)).skipped
        rows = DeltaTable(location(sink)).to_pyarrow_table().sort_by("id").to_pylist()
        assert rows == [row(1, 5), row(2)]

    @pytest.mark.usefixtures("each_way")
    @pytest.mark.parametrize("kind", ["append", "merge", "truncate", "nothing"])
    def test_no_commit_is_rebased_onto_another(self, sink: DeltaSink, kind: str) -> None:
        load(sink, row(1))
        insert(sink, 2, 110)
        handle = sink.open(TABLE, identity())
        writer = writer_of(sink)
        writer.position()
        DeltaTable(location(sink)).optimize.compact()
        t = changes()
        match kind:
            case "append":
                t.insert(row(3))
            case "merge":
                t.update(row(2, 3))
            case "truncate":
                t.truncate()
            case "nothing":
                t.insert(row(3))
                t.delete({"id": 3})
        with pytest.raises(Overtaken):
            handle.apply(net(t), Lsn(120))
        assert not writer.apply(net(t), Lsn(120)).skipped
        assert DeltaTable(location(sink)).version() == 3
        assert writer_of(sink).position() == 120

    @pytest.mark.parametrize("deed", ["append", "overwrite", "delete", "restore"])
    def test_foreign_changes_of_data_park_the_table(self, sink: DeltaSink, deed: str) -> None:
        load(sink, row(1))
        insert(sink, 2, 110)
        handle = DeltaTable(location(sink))
        more = pa.Table.from_pylist([row(9)], schema=SCHEMA)
        match deed:
            case "append" | "overwrite":
                write_deltalake(handle, more, mode=deed)
            case "delete":
                handle.delete('"id" = 1')
            case "restore":
                handle.restore(0)
        with pytest.raises(TableError, match="another program has changed") as caught:
            writer_of(sink).position()
        assert caught.value.remedy is Remedy.PARK
        with pytest.raises(TableError, match="another program has changed"):
            insert(sink, 3, 120)

    def test_foreign_changes_are_kept_if_the_configuration_allows_them(
        self, sink: DeltaSink
    ) -> None:
        load(sink, row(1))
        DeltaTable(location(sink)).delete('"id" = 1')
        tolerant = replace(sink, foreign_writes="allow")
        assert not insert(tolerant, 3, 120).skipped
        assert writer_of(tolerant).position() == 120
        # Our own commit is the newest again.
        assert writer_of(sink).position() == 120

    def test_copying_again_replaces_foreign_changes(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        DeltaTable(location(sink)).delete('"id" = 1')
        writer_of(sink, copy=2).load(batches(row(4)), Lsn(150))
        assert writer_of(sink).position() == 150

    def test_a_table_that_pgsluice_did_not_make_is_refused(self, sink: DeltaSink) -> None:
        write_deltalake(location(sink), pa.Table.from_pylist([row(1)], schema=SCHEMA))
        writer = writer_of(sink)
        with pytest.raises(TableError, match="pgsluice did not create"):
            writer.position()
        with pytest.raises(TableError, match="pgsluice did not create"):
            load(sink, row(2))


def _attempt(path: str, barrier: Any, results: Any) -> None:
    writer = writer_of(DeltaSink(path))
    writer.position()
    t = changes()
    t.update(row(1, 7))
    t.insert(row(2))
    barrier.wait(HANGS_S)
    applied = writer.apply(net(t), Lsn(110))
    results.put((applied.skipped, applied.version))


@contextmanager
def no_room() -> Iterator[None]:
    """Files of this process cannot grow, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("through_deltalake")
def test_a_store_without_room_is_named(sink: DeltaSink) -> None:
    with no_room(), pytest.raises(TargetUnreachable, match=r"public\.t: a file in .*/t is larger"):
        load(sink, row(1))


@pytest.mark.usefixtures("each_way")
def test_a_store_without_room_is_waited_for(sink: DeltaSink) -> None:
    load(sink, row(1))
    with no_room(), pytest.raises((TargetUnreachable, OSError)) as caught:
        insert(sink, 2, 110)
    failure = Failure.of(caught.value)
    assert (failure.remedy, failure.is_of_target) == (Remedy.WAIT, True)
    insert(sink, 2, 110)
    assert len(DeltaTable(location(sink)).to_pyarrow_table()) == 2


def test_a_store_that_does_not_answer_is_waited_for() -> None:
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "here",
        "max_retries": "0",
    }
    away = DeltaSink("s3://bucket/{table}", storage_options=options)
    with pytest.raises(TargetUnreachable) as caught:
        load(away, row(1))
    assert caught.value.what.isprintable()
    assert "s3://bucket cannot be reached" in caught.value.what


def test_a_data_file_that_is_gone_is_an_error_of_its_table(sink: DeltaSink) -> None:
    load(sink, row(1))
    for file in Path(location(sink)).glob("*.parquet"):
        file.unlink()
    t = changes()
    t.update(row(1, 7))
    with pytest.raises(Exception, match=r"data file .* does not exist") as caught:
        writer_of(sink).apply(net(t), Lsn(110))
    assert Failure.of(caught.value).remedy is Remedy.RETRY


def test_three_attempts_of_one_task_make_one_commit(
    sink: DeltaSink,
) -> None:
    load(sink, row(1))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    other = context.Process(target=_attempt, args=(sink.path, barrier, results))
    other.start()
    _attempt(sink.path, barrier, results)
    assert sorted(results.get(timeout=HANGS_S) for _ in range(2)) == [(False, 1), (True, 1)]
    other.join()
    assert insert(sink, 2, 105).skipped
    handle = DeltaTable(location(sink))
    assert handle.version() == 1
    assert handle.to_pyarrow_table().sort_by("id").to_pylist() == [row(1, 7), row(2)]


@pytest.mark.usefixtures("through_deltalake")
def test_a_batch_opens_its_table_once(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    load(sink, row(1), row(2))
    opens: list[str] = []

    def counted(uri: str, **options: Any) -> DeltaTable:
        opens.append(uri)
        return DeltaTable(uri, **options)

    monkeypatch.setattr("pgsluice.sinks.delta.ruled.handle.DeltaTable", counted)
    writer = writer_of(sink)
    assert writer.position() == 100
    assert (writer.copy_number(), writer.version()) == (1, 0)
    assert writer.schema() is not None
    t = changes()
    t.update(row(1, 5))
    writer.apply(net(t), Lsn(110))
    writer.maintain([])
    assert opens == [location(sink)]


def test_a_table_that_is_known_gets_the_commits_of_others(sink: DeltaSink) -> None:
    load(sink, row(1), row(2))
    apply_and_maintain(sink, 1, 110)
    DeltaTable(location(sink)).optimize.compact()
    apply_and_maintain(sink, 2, 120)
    rows = DeltaTable(location(sink)).to_pyarrow_table().sort_by("id")
    assert rows["a"].to_pylist() == [2, 0]
    DeltaTable(location(sink)).delete("id = 1")
    with pytest.raises(TableError, match="DELETE since pgsluice's last commit"):
        writer_of(sink).position()


def test_a_table_that_has_the_place_of_a_known_one_is_read_anew(sink: DeltaSink) -> None:
    load(sink, row(1))
    apply_and_maintain(sink, 1, 110)
    apply_and_maintain(sink, 2, 120)
    shutil.rmtree(location(sink))
    assert writer_of(sink).position() is None
    load(sink, row(1))
    apply_and_maintain(sink, 3, 130)
    shutil.rmtree(location(sink))
    load(sink, row(1))
    for lsn in (110, 115):  # as many commits as before
        apply_and_maintain(sink, lsn, lsn)
    assert writer_of(sink).position() == 115


def test_two_simultaneous_first_copies_make_one_commit(sink: DeltaSink) -> None:
    def while_another_copies() -> Any:
        yield from batches(row(1))
        # In another thread: deltalake cannot be called again while it reads these batches.
        with ThreadPoolExecutor(1) as other:
            other.submit(load, sink, row(1)).result()

    applied = writer_of(sink).load(while_another_copies(), Lsn(100))
    assert applied.skipped
    handle = DeltaTable(location(sink))
    assert (handle.version(), handle.to_pyarrow_table().to_pylist()) == (0, [row(1)])


class TestSchema:
    TYPES = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("bool", pa.bool_()),
            ("int2", pa.int16()),
            ("int4", pa.int32()),
            ("float4", pa.float32()),
            ("float8", pa.float64()),
            ("numeric", pa.decimal128(38, 10)),
            ("text", pa.string()),
            ("large", pa.large_string()),
            ("bytes", pa.binary()),
            ("date", pa.date32()),
            ("timestamp", pa.timestamp("us")),
            ("timestamptz", pa.timestamp("us", tz="UTC")),
            ("array", pa.list_(pa.int32())),
            ("map", pa.map_(pa.string(), pa.string())),
            ("struct", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ]
    )
    ROW = {  # noqa: RUF012 - never changed
        "id": 1,
        "bool": True,
        "int2": -(2**15),
        "int4": 2**31 - 1,
        "float4": float("inf"),
        "float8": 1e308,
        "numeric": Decimal("9999999999999999999999999999.0123456789"),
        "text": "ü\u0001\n",
        "large": "",
        "bytes": b"\x00\xff",
        "date": dt.date(1, 1, 1),
        "timestamp": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        "timestamptz": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        "array": [1, None, 3],
        "map": [("a", "b"), ("c", None)],
        "struct": {"x": 1, "y": None},
    }

    def test_deltalake_and_duckdb_read_types_and_values(self, sink: DeltaSink) -> None:
        table = TargetTable("public", "t", self.TYPES, ("id",))
        nothing = {**dict.fromkeys(self.TYPES.names), "id": 2}
        writer_of(sink, table).load(batches(self.ROW, nothing, schema=self.TYPES), Lsn(100))
        t = ChangesBuilder(self.TYPES)
        t.insert({**self.ROW, "id": 3})
        t.update({**self.ROW, "id": 2})
        t.update({**nothing, "id": 1})
        writer_of(sink, table).apply(net(t, table=table), Lsn(110))
        content = DeltaTable(location(sink)).to_pyarrow_table().sort_by("id")
        assert content.to_pylist() == [{**nothing, "id": 1}] + [
            {**self.ROW, "id": i} for i in (2, 3)
        ]
        assert [str(f.type) for f in content.schema][6:13] == [
            "decimal128(38, 10)",
            "string",
            "string",
            "binary",
            "date32[day]",
            "timestamp[us]",
            "timestamp[us, tz=UTC]",
        ]
        assert not content.schema.field("id").nullable
        lake = duckdb.connect()
        lake.register("t", DeltaTable(location(sink)).to_pyarrow_dataset())
        answer = lake.sql('select "int4", "numeric", "text", "array" from t where id = 3')
        assert answer.fetchall() == [
            tuple(self.ROW[name] for name in ("int4", "numeric", "text", "array"))
        ]

    def test_a_staged_copy_has_the_types_of_a_loaded_copy(
        self, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load(sink, row(1))
        # One batch per file, so that a merge can skip files.
        monkeypatch.setattr("pgsluice.sinks.lake.staging.TARGET_FILE_BYTES", 1)
        table = TargetTable("public", "t", self.TYPES, ("id",))
        rows = [
            {**self.ROW, "id": id_, "text": text} for id_, text in enumerate("aä😀\U0010ffff", 1)
        ]
        rows.append({**dict.fromkeys(self.TYPES.names), "id": 9})
        part = writer_of(sink, table).stage_load(batches(*rows, schema=self.TYPES), Lsn(150))
        writer_of(sink, table, copy=2).commit_load([part], Lsn(150))
        staged = DeltaTable(location(sink))
        assert len(staged.file_uris()) == 3
        # The first copy had no timestamps: the protocol has to list them now.
        assert "timestampNtz" in (staged.protocol().reader_features or [])
        assert staged.to_pyarrow_table().sort_by("id").to_pylist() == rows
        t = ChangesBuilder(self.TYPES)
        t.update({**dict.fromkeys(self.TYPES.names, ABSENT), "id": 3, "int4": 5})
        t.delete({"id": 9})
        writer_of(sink, table, copy=2).apply(net(t, table=table), Lsn(160))
        rows[2]["int4"] = 5
        changed = DeltaTable(location(sink))
        assert changed.to_pyarrow_table().sort_by("id").to_pylist() == rows[:4]
        for wanted in rows[:4]:
            scan = changed.scan(columns=["id"], predicate=f"text = '{wanted['text']}'")
            by_text = pa.RecordBatchReader.from_stream(scan).read_all()
            assert by_text.column("id").to_pylist() == [wanted["id"]]
        load_again = TargetTable("public", "t", self.TYPES, ("id",))
        writer_of(sink, load_again, copy=3).load(batches(*rows, schema=self.TYPES), Lsn(170))
        assert DeltaTable(location(sink)).schema() == staged.schema()

    def test_the_writers_schema_has_the_types_of_changes(self, sink: DeltaSink) -> None:
        table = TargetTable("public", "t", self.TYPES, ("id",))
        writer = writer_of(sink, table)
        assert writer.schema() is None
        writer.load([], Lsn(100))
        schema = writer.schema()
        assert schema is not None
        assert schema.names == self.TYPES.names
        different = [a.name for a, b in zip(schema, self.TYPES, strict=True) if a.type != b.type]
        assert different == ["large"]

    def test_a_type_that_delta_lacks_is_an_error_that_names_the_column(
        self, sink: DeltaSink
    ) -> None:
        schema = SCHEMA.append(pa.field("at", pa.time64("us")))
        writer = writer_of(sink, TargetTable("public", "t", schema, ("id",)))
        with pytest.raises(TableError, match="no type for column 'at'"):
            writer.load([], Lsn(100))

    def test_a_null_in_a_key_is_refused_without_showing_rows(self, sink: DeltaSink) -> None:
        loose = SCHEMA.set(0, pa.field("id", pa.int64()))
        rows = batches({"id": None, "big": "secret"}, schema=loose)
        with pytest.raises(
            TableError, match=r"'id' of table public.t is NULL in 1 copied row"
        ) as caught:
            writer_of(sink).load(rows, Lsn(100))
        assert "secret" not in str(caught.value)
        assert writer_of(sink).position() is None

    def test_a_dropped_column_stays_and_is_null_in_new_rows(self, sink: DeltaSink) -> None:
        load(sink, row(1), row(2))
        t = changes()
        t.update(row(2, None))
        writer_of(sink).apply(net(t), Lsn(110))
        narrow = SCHEMA.remove(1)
        t = ChangesBuilder(narrow)
        t.insert({"id": 3, "big": "x"})
        table = TargetTable("public", "t", narrow, ("id",))
        writer_of(sink, table).apply(net(t, table=table), Lsn(120))
        rows = DeltaTable(location(sink)).to_pyarrow_table().sort_by("id").to_pylist()
        assert rows == [row(1), row(2, None), row(3, None, "x")]

    def test_a_column_is_added_by_a_commit_of_its_own(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        wide = SCHEMA.append(pa.field("more", pa.timestamp("us")))
        t = ChangesBuilder(wide)
        t.update(row(1, 2))
        table = TargetTable("public", "t", wide, ("id",))
        writer_of(sink, table).apply(net(t, table=table), Lsn(110))
        # Versions 0 to 2: the copy, the column with the feature that it needs, the changes.
        assert DeltaTable(location(sink)).version() == 2
        assert writer_of(sink, table).position() == 110


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int16(), [-1, 0, 1, 2]),
    (pa.string(), ["", "a'b", "a", "ü"]),
    (pa.large_string(), ["x", "y", "z", "zz"]),
    (pa.binary(), [b"", b"\x00", b"\xff", b"'"]),
    (pa.bool_(), [True, False]),
    (pa.float64(), [0.5, -1.0, 1e300, float("inf")]),
    (pa.decimal128(38, 2), [Decimal("1.10"), Decimal("-1.00"), Decimal("0.00"), Decimal("9e30")]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 1, 1)]),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1, 0, 0, 0, i) for i in range(4)]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, i, tzinfo=dt.UTC) for i in (1, 2, 3, 4)]),
]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_keys_of_every_type(sink: DeltaSink, kind: pa.DataType, keys: list[Any]) -> None:
    schema = pa.schema([pa.field("id", kind, nullable=False), ("a", pa.int32()), SCHEMA.field(2)])
    table = TargetTable("public", "t", schema, ("id",))
    first, second, *others = keys
    rows = [row(key, i, f"of {i}") for i, key in enumerate(keys)]
    writer_of(sink, table).load(batches(*rows, schema=schema), Lsn(100))
    t = ChangesBuilder(schema)
    t.delete({"id": second})
    t.update(row(second, 50, ABSENT), old={"id": first})
    for key in others:
        t.update(row(key, 60, ABSENT))
    writer_of(sink, table).apply(net(t, table=table), Lsn(110))
    content = DeltaTable(location(sink)).to_pyarrow_table().to_pylist()
    by_key = {r["id"]: r for r in content}
    expected = {key: row(key, 60, f"of {i}") for i, key in enumerate(others, 2)}
    assert by_key == {second: row(second, 50, "of 0"), **expected}
    assert len(content) == len(by_key)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (DATE.arrow_type, (days_from_civil(-4712, 11, 24), DATE.width.stop - 1)),
        (TIMESTAMP.arrow_type, (days_from_civil(-4712, 11, 24) * 86_400_000_000, 2**63 - 1)),
        (TIMESTAMPTZ.arrow_type, (days_from_civil(-4712, 11, 24) * 86_400_000_000, 2**63 - 1)),
    ],
    ids=["date", "timestamp", "timestamptz"],
)
@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("is_key", [True, False])
def test_the_ends_of_a_type_are_written_merged_and_maintained(
    sink: DeltaSink,
    monkeypatch: pytest.MonkeyPatch,
    kind: pa.DataType,
    ends: tuple[int, int],
    *,
    is_key: bool,
) -> None:
    """From 4713 BC, PostgreSQL's first day, to the last value that the column type holds."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("at", kind, not is_key)]
    )
    table = TargetTable("public", "t", schema, ("at",) if is_key else ("id",))
    integer = pa.int32() if pa.types.is_date(kind) else pa.int64()
    values = pa.array(ends, integer).cast(kind)
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), values], schema=schema)
    writer_of(sink, table).load([rows], Lsn(100))
    for i, at in enumerate(ends):
        whole = {"id": i + 1, "at": at}
        t = ChangesBuilder(schema, table.key)
        t.delete({name: whole[name] for name in table.key})
        writer_of(sink, table).apply(net(t, table=table), Lsn(101 + 2 * i))
        t = ChangesBuilder(schema, table.key)
        t.insert(whole)
        t.update(whole)
        writer_of(sink, table).apply(net(t, table=table), Lsn(102 + 2 * i))
    seven = AddedColumn(pa.field("c", pa.int32()), pa.scalar(7, pa.int32()))
    writer_of(sink, table).alter([seven], ())
    maintain(writer_of(sink, table), monkeypatch)
    content = sink.open(table, identity()).content(DeltaTable(location(sink)).version())
    assert content is not None
    kept = pa.Table.from_batches(content.rows, content.schema).sort_by("id")
    assert kept.column("at").cast(integer).to_pylist() == [*ends]
    assert kept.column("c").to_pylist() == [7, 7]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.decimal128(38, 0), [Decimal(2**63 + 1), Decimal(2**63 + 2), Decimal(2**63 + 3)]),
        (pa.float64(), [float("nan"), 1.0, -0.0]),
        (pa.float32(), [float("nan"), 1.5, -0.0]),
    ],
    ids=str,
)
def test_inexact_bounds_that_an_older_version_wrote_hide_no_rows(
    sink: DeltaSink, kind: pa.DataType, keys: list[Any]
) -> None:
    schema = pa.schema([pa.field("id", kind, nullable=False), ("a", pa.int32())])
    table = TargetTable("public", "t", schema, ("id",))
    tolerant = replace(sink, foreign_writes="allow")
    writer_of(tolerant, table).load(batches(schema=schema), Lsn(100))
    for key in keys:  # a file for each, with the bounds that deltalake writes by itself
        only = pa.table({"id": pa.array([key], kind), "a": pa.array([0], pa.int32())})
        write_deltalake(location(sink), only.cast(schema), mode="append")
    assert any("id" in names for names in _columns_with_bounds(sink))
    t = ChangesBuilder(schema)
    for i, key in enumerate(keys):
        t.update({"id": key, "a": i + 1})
    applied = writer_of(tolerant, table).apply(net(t, table=table), Lsn(110))
    assert (applied.rows_updated, applied.rows_skipped) == (3, 0)
    t = ChangesBuilder(schema)
    for key in keys:
        t.delete({"id": key})
    assert writer_of(tolerant, table).apply(net(t, table=table), Lsn(120)).rows_deleted == 3
    assert DeltaTable(location(sink)).to_pyarrow_table().num_rows == 0


@pytest.mark.usefixtures("through_deltalake")
def test_files_are_compressed_and_have_only_exact_bounds(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of copies, appended and merged rows, and after a compaction."""
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("long", pa.decimal128(38, 0)),
        ("short", pa.decimal128(15, 2)), ("f", pa.float64()),
    ])  # fmt: skip
    table = TargetTable("public", "t", schema, ("id",))

    def values(id_: int) -> dict[str, Any]:
        exact = {"long": Decimal(2**63 + id_), "short": Decimal("0.30")}
        return {"id": id_, "f": float("nan") if id_ % 2 else 1.0, **exact}

    writer_of(sink, table).load(batches(values(0), values(1), schema=schema), Lsn(100))
    bounds = _columns_with_bounds(sink)
    for i in range(MANY_SMALL_FILES):
        t = ChangesBuilder(schema)
        if i == 0:
            t.update(values(0))
        t.insert(values(i + 2))
        writer_of(sink, table).apply(net(t, table=table), Lsn(101 + i))
        bounds += _columns_with_bounds(sink)
    maintain(writer_of(sink, table), monkeypatch)
    assert len(DeltaTable(location(sink)).file_uris()) == 1
    found = {tuple(names) for names in [*bounds, *_columns_with_bounds(sink)]}
    of_copies, of_deltalake = ("id", "long", "short"), ("id", "short")
    assert found == {of_copies, of_deltalake}
    codecs = {
        pq.ParquetFile(path).metadata.row_group(0).column(0).compression
        for path in Path(location(sink)).glob("*.parquet")
    }
    assert codecs == {"SNAPPY"}


def _columns_with_bounds(sink: DeltaSink) -> list[list[str]]:
    actions = pa.table(DeltaTable(location(sink)).get_add_actions(flatten=True)).to_pylist()
    return [
        [
            name[4:]
            for name, least in action.items()
            if name.startswith("min.") and least is not None
        ]
        for action in actions
    ]


class TestRulesOfOthers:
    """What only deltalake knows of a table stays right: it makes the commits then."""

    def test_a_change_data_feed_has_the_changed_rows_only(self, sink: DeltaSink) -> None:
        load(sink, *(row(id_) for id_ in range(50)))
        feed = {"delta.enableChangeDataFeed": "true"}
        DeltaTable(location(sink)).alter.set_table_properties(feed)
        t = changes()
        t.update(row(1, 5))
        writer = writer_of(sink)
        assert not writer.can_stage_changes()
        version = writer.apply(net(t), Lsn(110)).version
        changed = pa.table(DeltaTable(location(sink)).load_cdf(version).read_all())
        assert sorted(changed.select(["id", "a"]).to_pylist(), key=str) == [
            {"id": 1, "a": 0},
            {"id": 1, "a": 5},
        ]
        folder = Path(location(sink))
        left = [folder / name for name in ("part-1.parquet", "a=1/part-2.parquet")]
        left[1].parent.mkdir()
        for path in left:
            path.touch()
        named = [path for path in folder.rglob("*") if path.is_file() and path not in left]
        writer.delete_leftovers(time.time() + 60)
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in named), "also those of the feed"

    def test_a_checkpoint_in_parts_is_read(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        insert(sink, 2, 110)
        DeltaTable(location(sink)).create_checkpoint()
        logs = Path(location(sink), "_delta_log")
        (single,) = logs.glob("*.checkpoint.parquet")
        single.rename(logs / f"{1:020}.checkpoint.{1:010}.{1:010}.parquet")
        for path in (logs / f"{0:020}.json", logs / "_last_checkpoint"):
            path.unlink()
        KNOWN_TABLES.clear()
        assert not insert(sink, 3, 120).skipped
        rows = DeltaTable(location(sink)).to_pyarrow_table().sort_by("id").to_pylist()
        assert rows == [row(1), row(2), row(3)]

    def test_a_constraint_is_kept(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        DeltaTable(location(sink)).alter.add_constraint({"small": "a < 10"})
        t = changes()
        t.update(row(1, 5))
        writer_of(sink).apply(net(t), Lsn(110))
        t = changes()
        t.update(row(1, 50))
        with pytest.raises(TableError, match="violate one of its constraints"):
            writer_of(sink).apply(net(t), Lsn(120))

    def test_a_copy_keeps_a_constraint(self, sink: DeltaSink) -> None:
        def rows() -> list[dict[str, Any]]:
            return DeltaTable(location(sink)).to_pyarrow_table().sort_by("id").to_pylist()

        load(sink, row(1))
        DeltaTable(location(sink)).alter.add_constraint({"small": "a < 10"})
        with pytest.raises(TableError, match="violate one of its constraints"):
            writer_of(sink, copy=2).load(batches(row(1, 5), row(2, 50)), Lsn(120))
        assert rows() == [row(1)]
        writer_of(sink, copy=2).load(batches(row(1, 5), row(3, 9)), Lsn(130))
        assert rows() == [row(1, 5), row(3, 9)]
        writer = writer_of(sink, copy=2)
        assert writer.position() == 130
        with pytest.raises(TableError, match="violate one of its constraints"):
            writer.apply(net(changes().insert(row(4, 50))), Lsn(140))
        writer = writer_of(sink, copy=2)
        writer.position()
        writer.alter([AddedColumn(pa.field("c", pa.int32()), pa.scalar(7, pa.int32()))], ())
        assert rows() == [{**row(1, 5), "c": 7}, {**row(3, 9), "c": 7}]


VARIANT = TargetTable(
    "public", "t", pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", ARROW)]), ("id",)
)
VALUES = {1: b'{"a": 1}', 2: b"null", 3: None}


def documents(values: dict[int, bytes | None]) -> pa.Table:
    texts = pa.array(values.values(), pa.large_binary())
    variants = resolve_type(3802, -1, {}, TypeOptions(nested="variant")).decode_text(texts).values
    return pa.table([pa.array(values, pa.int32()), variants], schema=VARIANT.schema)


@pytest.mark.usefixtures("each_way")
class TestVariants:
    """A column of the type ``variant`` stays one, whoever makes the commit."""

    def read(self, sink: DeltaSink, column: str = "v") -> dict[int, Any]:
        table = DeltaTable(location(sink))
        (field,) = (field for field in table.schema().fields if field.name == column)
        assert str(field.type) == "VariantType()"
        assert "variantType" in (table.protocol().reader_features or ())
        assert "variantType" in (table.protocol().writer_features or ())
        rows = pa.RecordBatchReader.from_stream(table.scan()).read_all()
        texts = postgres_text(rows[column].combine_chunks()).to_pylist()
        return dict(zip(rows["id"].to_pylist(), texts, strict=True))

    def test_it_is_copied_merged_added_and_maintained(
        self, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load(sink, row(1))  # a table without such columns becomes one with them
        writer_of(sink, VARIANT, copy=2).load(documents(VALUES).to_batches(), Lsn(110))
        assert self.read(sink) == {1: '{"a": 1}', 2: "null", 3: None}
        t = ChangesBuilder(VARIANT.schema, VARIANT.key)
        [new] = documents({2: b"[2.50]"}).to_pylist()
        t.update(new)
        t.insert({"id": 4, "v": None})
        t.update({"id": 1, "v": ABSENT})
        writer = writer_of(sink, VARIANT, copy=2)
        writer.apply(net(t, table=VARIANT), Lsn(120))
        added = AddedColumn(pa.field("w", ARROW), pa.scalar(None, ARROW))
        wide = replace(VARIANT, schema=VARIANT.schema.append(added.field))
        writer_of(sink, wide, copy=2).alter([added], [])
        value = documents({1: b"true"})["v"][0]
        another = AddedColumn(pa.field("x", ARROW), value)
        wider = replace(wide, schema=wide.schema.append(another.field))
        writer_of(sink, wider, copy=2).alter([another], [])
        maintain(writer_of(sink, wider, copy=2), monkeypatch)
        assert self.read(sink) == {1: '{"a": 1}', 2: "[2.50]", 3: None, 4: None}
        assert self.read(sink, "w") == dict.fromkeys(range(1, 5))
        assert self.read(sink, "x") == dict.fromkeys(range(1, 5), "true")


class TestMaintenance:
    def test_the_folder_stays_small_after_many_small_merges(self, sink: DeltaSink) -> None:
        rows = 100_000
        data = pa.table(
            {
                "id": pa.array(range(rows), pa.int64()),
                "a": pa.array([0] * rows, pa.int32()),
                "big": [os.urandom(40).hex() for _ in range(rows)],
            },
            schema=SCHEMA,
        )
        loaded = writer_of(sink).load(data.to_batches(), Lsn(100))
        for i in range(16):
            t = changes()
            for id_ in range(i, rows, rows // 50):
                t.update(row(id_, i, "new"))
            writer = writer_of(sink)
            writer.apply(net(t), Lsn(101 + i))
            writer.maintain([loaded.version])
        assert _bytes_in(location(sink)) < 7 * loaded.bytes_written
        handle = DeltaTable(location(sink))
        assert handle.to_pyarrow_table().num_rows == rows
        kept = DeltaTable(location(sink), version=loaded.version)
        assert kept.to_pyarrow_table().sort_by("id").equals(data)

    def test_compaction_joins_small_files_and_keeps_the_position(self, sink: DeltaSink) -> None:
        load(sink, row(0))
        for i in range(1, MANY_COMMITS + 1):
            insert(sink, i, 100 + i)
        writer = writer_of(sink)
        writer.maintain([0, 10**9])
        handle = DeltaTable(location(sink))
        assert len(handle.file_uris()) == 1
        assert handle.to_pyarrow_table().num_rows == MANY_COMMITS + 1
        assert writer.position() == 100 + MANY_COMMITS
        version = handle.version()
        writer_of(sink).maintain([])
        assert DeltaTable(location(sink)).version() == version
        assert not insert(sink, 999, 999).skipped

    def test_the_position_survives_checkpoints_and_log_cleanup(self, sink: DeltaSink) -> None:
        load(sink, row(0))
        insert(sink, 1, 110)
        handle = DeltaTable(location(sink))
        handle.create_checkpoint()
        _age_log(location(sink))
        handle.cleanup_metadata()
        assert not Path(location(sink), "_delta_log", "00000000000000000000.json").exists()
        assert writer_of(sink).position() == 110
        assert insert(sink, 1, 110).skipped
        # A kept version whose log is gone is ignored.
        writer = writer_of(sink)
        for i in range(MANY_COMMITS):
            insert(sink, i + 2, 111 + i)
        writer = writer_of(sink)
        writer.maintain([0])
        assert writer.position() == 110 + MANY_COMMITS

    def test_a_missing_table_needs_no_maintenance(self, sink: DeltaSink) -> None:
        writer_of(sink).maintain([])

    def test_every_version_of_the_history_can_be_read(self, sink: DeltaSink) -> None:
        load(sink, row(0))
        day = replace(sink, history_retention_s=24 * 3600)
        for keeping, is_readable in ((sink, False), (day, True)):
            first = DeltaTable(location(sink)).version()
            for i in range(MANY_COMMITS):
                t = changes()
                t.update(row(0, i))
                writer_of(keeping).apply(net(t), Lsn(1000 * (1 + is_readable) + i))
            writer = writer_of(keeping)
            writer.maintain([])
            files = DeltaTable(location(sink), version=first + 1).file_uris()
            assert all(Path(file).exists() for file in files) is is_readable
        properties = DeltaTable(location(sink)).metadata().configuration
        assert properties["delta.logRetentionDuration"] == "interval 24 hours"
        assert properties["delta.deletedFileRetentionDuration"] == "interval 24 hours"
        assert not insert(sink, 999, 9999).skipped, "the position is still read"


def _bytes_in(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _age_log(table: str) -> None:
    old = time.time() - 7 * 3600
    for path in Path(table, "_delta_log").iterdir():
        os.utime(path, (old, old))


def test_only_columns_whose_values_repeat_have_a_dictionary(tmp_path: Path) -> None:
    """Of different values it makes a file larger, and takes most of the time."""
    count = 5000
    columns: dict[str, pa.Array] = {
        "id": pa.array(range(count)),
        "kind": pa.array([f"kind {number % 5}" for number in range(count)]),
        "a.b": pa.array([Decimal(number % 7) for number in range(count)], pa.decimal128(12, 2)),
        "tags": pa.array([[f"tag {number % 3}", "x"] for number in range(count)]),
        "ids": pa.array([[number] for number in range(count)]),
        "none": pa.nulls(count, pa.string()),
        "empty": pa.array([[]] * count, pa.list_(pa.int32())),
    }
    batch = pa.record_batch(columns)
    (file,) = write_files(LocalFolder(tmp_path), batch.schema, [batch])
    metadata = pq.read_metadata(tmp_path / file.name).row_group(0)
    chunks = [metadata.column(number) for number in range(metadata.num_columns)]
    with_dictionary = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]
    assert {"kind", "a.b", "tags.list.element"} <= {*with_dictionary}
    assert not {"id", "ids.list.element"} & {*with_dictionary}
    assert pq.read_table(tmp_path / file.name).to_batches()[0].equals(batch)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("action", ["update", "delete", "rekey"])
def test_a_change_of_a_key_that_two_rows_have_changes_neither(sink: DeltaSink, action: str) -> None:
    """A target of a version that took the user's word for the key."""
    load(sink, row(1, 1), row(1, 2), row(2))
    t = changes()
    if action == "update":
        t.update(row(1, 3))
    elif action == "delete":
        t.delete({"id": 1})
    else:
        t.update(row(3, 3), {"id": 1})
    t.update(row(2, 5))
    unproved = net(t, is_key_proved=False)
    with pytest.raises(TableError, match=r"the key \(id\) .* is not unique: 1 value .* at 0/64"):
        writer_of(sink).apply(unproved, Lsn(200))
    values = DeltaTable(location(sink)).to_pyarrow_table().column("a").to_pylist()
    assert sorted(values) == [0, 1, 2]
