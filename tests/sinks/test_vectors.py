"""The Delta sink with ``merge = "on_read"``: rows die by deletion vectors."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaProtocolError
from pyroaring import BitMap
from tests.sinks.cached_files import key_files

from pgsluice import failpoints
from pgsluice.changes.net import put_rows
from pgsluice.config import parse_sink
from pgsluice.errors import Failure, PgsluiceError, Remedy, TableError, TargetUnreachable
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Overtaken, Sink, TargetTable
from pgsluice.sinks.delta.advice import advice_on_merges
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.log.deletion_vectors import (
    Descriptor,
    from_base85,
    to_base85,
    write_vectors,
)
from pgsluice.sinks.delta.log.reading import (
    KNOWN_TABLES,
    commit_name,
    newest_snapshot,
    read_commit,
    remember,
)
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.lake.keys.sidecars import Sidecar
from pgsluice.sinks.lake.mapped_files import OpenFiles
from pgsluice.sinks.lake.merge.net_merge import LARGE_SHARE
from pgsluice.sinks.lake.upkeep import FILES_OF_A_SIZE
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


def has_vectors(sink: DeltaSink) -> bool:
    """Whether the tests' table allows deletion vectors."""
    table = DeltaTable(location(sink))
    return "deletionVectors" in (table.protocol().reader_features or ())


def scan(location: str) -> pa.Table:
    """A table as deltalake's engine reads it, which knows vectors."""
    return pa.RecordBatchReader.from_stream(DeltaTable(location).scan()).read_all()


@pytest.fixture
def large_share() -> float:
    """Of a large batch. The tests' tables have so few rows that most batches would be large."""
    return 1.0


@pytest.fixture(autouse=True)
def _large_batches(large_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.sinks.lake.merge.net_merge.LARGE_SHARE", large_share)


class TestContract(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(
            f"{tmp_path}/lake/{{schema}}/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys"
        )

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        return scan(sink.location(table.namespace, table.name)).to_pylist()


@pytest.mark.parametrize("large_share", [LARGE_SHARE])
class TestContractWithLargeBatches(TestContract):
    """Batches that rewrite files are right, too."""


class TestContractWhereTheSizeDecides(SinkContract):
    """The first copy is large enough for deletion vectors."""

    @pytest.fixture
    def sink(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
        monkeypatch.setattr("pgsluice.sinks.delta.handle.LARGE_BYTES", 1)
        return DeltaSink(
            f"{tmp_path}/lake/{{schema}}/{{table}}", merge="auto", cache_dir=f"{tmp_path}/keys"
        )

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        return scan(sink.location(table.namespace, table.name)).to_pylist()


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return DeltaSink(f"{tmp_path}/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys")


def location(sink: DeltaSink) -> str:
    return sink.location("public", "t")


def writer_of(sink: DeltaSink) -> TableWriter:
    return TableWriter(sink, TABLE, identity())


def load(sink: DeltaSink, *rows: dict[str, Any]) -> None:
    writer_of(sink).load(batches(*rows), Lsn(100))


def apply(sink: DeltaSink, t: ChangesBuilder, lsn: int) -> Applied:
    return writer_of(sink).apply(net(t), Lsn(lsn))


def rows_of(sink: DeltaSink) -> list[dict[str, Any]]:
    return sorted(scan(location(sink)).to_pylist(), key=lambda one: one["id"])


def update(id_: int, a: int, big: Any = ABSENT) -> ChangesBuilder:
    t = changes()
    t.update(row(id_, a, big))
    return t


def test_a_merge_rewrites_no_file_and_every_reader_sees_it(sink: DeltaSink) -> None:
    load(sink, row(1, 1, "one"), row(2, 2, "two"), row(3, 3, "three"))
    before = set(Path(location(sink)).glob("*.parquet"))
    t = changes()
    t.update(row(2, 20, ABSENT))
    t.delete({"id": 1})
    t.insert(row(4))
    apply(sink, t, 110)
    files = set(Path(location(sink)).glob("*.parquet"))
    assert before < files
    assert len(files - before) == 1
    expected = [row(2, 20, "two"), row(3, 3, "three"), row(4)]
    assert rows_of(sink) == expected
    assert pl.read_delta(location(sink)).sort("id").to_dicts() == expected


@pytest.mark.parametrize("large_share", [LARGE_SHARE])
def test_a_large_batch_rewrites_the_files_that_it_hits_much(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.lake.staging.TARGET_FILE_BYTES", 1)
    many = pa.Table.from_pylist([row(id_) for id_ in range(100)], SCHEMA)
    writer_of(sink).load(many.to_batches(max_chunksize=25), Lsn(100))
    before = set(DeltaTable(location(sink)).file_uris())
    assert len(before) == 4
    t = changes()
    for id_ in (*range(20), 60):
        t.update(row(id_, 7))
    apply(sink, t, 110)
    after = set(DeltaTable(location(sink)).file_uris())
    assert len(before & after) == 3
    assert len(_vectors_in_use(sink)) == 1, "of the file that has one of the changed rows"
    expected = [row(id_, 7, "big") if id_ in (*range(20), 60) else row(id_) for id_ in range(100)]
    assert rows_of(sink) == expected
    apply(sink, update(1, 8), 120)
    assert len(_vectors_in_use(sink)) == 2
    assert rows_of(sink)[1] == row(1, 8, "big")


class TestReaders:
    """What docs/delta.md says of readers; Spark and DuckDB read in tests of their own."""

    EXPECTED = (row(2, 20, "two"), row(3, 3, "three"))

    @pytest.fixture
    def table(self, sink: DeltaSink) -> DeltaTable:
        load(sink, row(1, 1, "one"), row(2, 2, "two"), row(3, 3, "three"))
        t = changes()
        t.update(row(2, 20, ABSENT))
        t.delete({"id": 1})
        apply(sink, t, 110)
        return DeltaTable(location(sink))

    @pytest.mark.parametrize(
        "read",
        [
            lambda table: pa.RecordBatchReader.from_stream(table.scan()).read_all(),
            lambda table: pa.table(
                QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
            ),
            lambda table: pl.read_delta(table.table_uri).to_arrow(),
            lambda table: pl.scan_delta(table.table_uri).collect().to_arrow(),
        ],
        ids=["scan", "QueryBuilder", "polars.read_delta", "polars.scan_delta"],
    )
    def test_it_leaves_out_dead_rows(
        self, table: DeltaTable, read: Callable[[DeltaTable], pa.Table]
    ) -> None:
        rows = sorted(read(table).to_pylist(), key=lambda one: one["id"])
        assert rows == list(self.EXPECTED)

    @pytest.mark.parametrize("method", ["to_pandas", "to_pyarrow_table", "to_pyarrow_dataset"])
    def test_it_refuses_the_table(self, table: DeltaTable, method: str) -> None:
        with pytest.raises(DeltaProtocolError, match="deletionVectors"):
            getattr(table, method)()

    def test_it_counts_or_reads_dead_rows(self, table: DeltaTable, sink: DeltaSink) -> None:
        assert table.count() == 4
        files = Path(location(sink)).glob("*.parquet")
        assert sum(pq.read_metadata(file).num_rows for file in files) == 4


def test_base_85_is_that_of_the_protocol(tmp_path: Path) -> None:
    """Its examples in "Deletion Vectors"; the bytes of the first one are in another form."""
    text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    data = from_base85(text)
    assert np.frombuffer(data, "<u2")[-6:].tolist() == [3, 4, 7, 11, 18, 29]
    assert to_base85(data) == text
    descriptor = Descriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert descriptor.name(LocalFolder(tmp_path)) == f"ab/{name}"


def test_the_vectors_of_a_commit_share_a_file(tmp_path: Path) -> None:
    vectors = [BitMap(range(0, 2 * count, 2)) for count in (1, 1000, 100_000)]
    descriptors, size = write_vectors(LocalFolder(tmp_path), vectors)
    (name,) = {descriptor.name(LocalFolder(tmp_path)) for descriptor in descriptors}
    assert name is not None
    assert (tmp_path / name).stat().st_size == size
    assert [descriptor.read(LocalFolder(tmp_path)) for descriptor in descriptors] == vectors
    assert write_vectors(LocalFolder(tmp_path), []) == ([], 0)


def test_a_vector_that_stands_in_the_log_can_be_read(tmp_path: Path) -> None:
    """Others may write some."""
    rows = BitMap([3, 4, 7, 11, 18, 29])
    data = struct.pack("<IQI", 1681511377, 1, 0) + rows.serialize()
    text = to_base85(data + bytes(-len(data) % 4))
    descriptor = Descriptor("i", text, None, len(data), len(rows))
    assert descriptor.read(LocalFolder(tmp_path)) == rows
    with pytest.raises(PgsluiceError, match="no text in base 85"):
        replace(descriptor, path="~~~~~").read(LocalFolder(tmp_path))


class TestForeignCommits:
    """Others may maintain a table with vectors, but not change its data."""

    def test_after_an_optimize_between_open_and_commit_the_rows_are_located_again(
        self, sink: DeltaSink
    ) -> None:
        load(sink, row(1, 1, "one"), row(2))
        apply(sink, update(2, 5), 110)
        writer = writer_of(sink)
        writer.position()
        handle = sink.open(TABLE, identity())
        DeltaTable(location(sink)).optimize.compact()
        with pytest.raises(Overtaken):
            handle.apply(net(update(1, 7)), Lsn(120))
        assert not writer.apply(net(update(1, 7)), Lsn(120)).skipped
        assert rows_of(sink) == [row(1, 7, "one"), row(2, 5)]
        assert writer_of(sink).position() == 120

    @pytest.mark.parametrize("deed", ["append", "delete", "restore"])
    def test_foreign_changes_of_data_park_the_table(self, sink: DeltaSink, deed: str) -> None:
        load(sink, row(1))
        apply(sink, update(1, 2), 110)
        handle = DeltaTable(location(sink))
        match deed:
            case "append":
                write_deltalake(handle, pa.Table.from_pylist([row(9)], SCHEMA), mode="append")
            case "delete":
                handle.delete('"id" = 1')
            case "restore":
                handle.restore(0)
        with pytest.raises(TableError, match="another program has changed"):
            apply(sink, update(1, 3), 120)

    def test_a_rule_of_the_table_that_a_commit_would_break_is_refused(
        self, sink: DeltaSink
    ) -> None:
        load(sink, row(1))
        DeltaTable(location(sink)).alter.add_constraint({"positive": "id > 0"})
        with pytest.raises(TableError, match=r"a constraint \(positive\)"):
            apply(sink, update(1, 3), 120)
        copy = TableWriter(sink, TABLE, replace(identity(), copy_number=2))
        with pytest.raises(TableError, match=r"a constraint \(positive\)"):
            copy.load(batches(row(0)), Lsn(120))
        hinted = writer_of(replace(sink, merge_tables={"public.t": "on_write"}))
        hinted.apply(net(update(1, 3)), Lsn(120))
        hinted.maintain([])
        assert rows_of(sink) == [row(1, 3, "big")]


@pytest.mark.parametrize("merge", ["on_read", "auto", "on_write"])
def test_a_copy_makes_the_key_files_that_its_first_batch_needs(
    sink: DeltaSink, merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.delta.handle.LARGE_BYTES", 1)
    monkeypatch.setattr("pgsluice.sinks.lake.staging.TARGET_FILE_BYTES", 1)
    sink = replace(sink, merge=merge)
    table = pa.Table.from_pylist([row(1), row(2), row(3)], SCHEMA)
    writer_of(sink).load(table.to_batches(max_chunksize=1), Lsn(100))
    made = key_files(Path(f"{sink.cache_dir}"))
    assert len(made) == (0 if merge == "on_write" else 3)
    monkeypatch.setattr("pgsluice.sinks.lake.keys.index.OPENED", OpenFiles(Sidecar))
    apply(sink, update(2, 5), 110)
    assert made.items() <= key_files(Path(f"{sink.cache_dir}")).items(), (
        "no data file was read for its keys"
    )
    assert rows_of(sink) == [row(1), row(2, 5), row(3)]


def test_new_keys_that_are_looked_for_have_key_files_where_merges_write_files(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch of inserts only reads the keys of a file that an earlier one has read."""
    sink = replace(sink, merge="on_write")
    load(sink, row(1), row(2))
    apply(sink, changes(position=110).insert(row(3)), 110)
    assert key_files(Path(f"{sink.cache_dir}")) == {}, "nothing was looked for"
    for number in (4, 5):
        made = key_files(Path(f"{sink.cache_dir}"))
        monkeypatch.setattr("pgsluice.sinks.lake.keys.index.OPENED", OpenFiles(Sidecar))
        [new] = batches(row(number))
        writer_of(sink).apply(put_rows(new, TABLE.key), Lsn(100 + 10 * number))
        assert len(key_files(Path(f"{sink.cache_dir}"))) == number - 1
        assert made.items() <= key_files(Path(f"{sink.cache_dir}")).items()
    assert rows_of(sink) == [row(number) for number in range(1, 6)]


@pytest.mark.parametrize("harm", ["lost", "cut", "wrong byte"])
def test_a_damaged_key_file_is_made_again(
    sink: DeltaSink, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(sink, row(1), row(2))
    apply(sink, update(2, 5), 110)
    apply(sink, update(1, 6), 120)
    monkeypatch.setattr("pgsluice.sinks.lake.keys.index.OPENED", OpenFiles(Sidecar))
    for path in Path(f"{sink.cache_dir}").rglob("*.keys"):
        data = bytearray(path.read_bytes())
        path.unlink()
        match harm:
            case "cut":
                path.write_bytes(data[:-100])
            case "wrong byte":
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
    apply(sink, update(2, 7), 130)
    assert rows_of(sink) == [row(1, 6), row(2, 7)]


def test_a_table_that_is_merged_on_write_gets_vectors_with_its_next_batch(sink: DeltaSink) -> None:
    load(replace(sink, merge="on_write"), row(1, 1, "one"), row(2))
    apply(replace(sink, merge="on_write"), update(2, 5), 110)
    apply(sink, update(1, 3), 120)
    assert "deletionVectors" in (DeltaTable(location(sink)).protocol().reader_features or [])
    assert rows_of(sink) == [row(1, 3, "one"), row(2, 5)]


class TestAuto:
    """``merge = "auto"``: a table gets its way when it is made, and keeps it."""

    @pytest.fixture
    def sink(self, sink: DeltaSink) -> DeltaSink:
        return replace(sink, merge="auto")

    @pytest.mark.parametrize("is_large", [True, False])
    def test_the_size_of_the_first_copy_decides(
        self, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
    ) -> None:
        limit = "pgsluice.sinks.delta.handle.LARGE_BYTES"
        monkeypatch.setattr(limit, 1 if is_large else 10**9)
        load(sink, row(1), row(2))
        assert has_vectors(sink) is is_large
        monkeypatch.setattr(limit, 10**9 if is_large else 1)
        apply(sink, update(1, 5), 110)
        TableWriter(sink, TABLE, identity(copy=2)).load(batches(row(1), row(3)), Lsn(120))
        writer = TableWriter(sink, TABLE, identity(copy=2))
        writer.apply(net(update(1, 7)), Lsn(130))
        writer.maintain([])
        assert has_vectors(sink) is is_large, "an existing table keeps its way, whatever happens"
        assert rows_of(sink) == [row(1, 7, "big"), row(3)]

    def test_a_table_that_only_takes_inserts_has_no_vectors(
        self, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pgsluice.sinks.delta.handle.LARGE_BYTES", 1)
        schema = pa.schema([field.with_nullable(True) for field in SCHEMA])
        table = TargetTable("public", "t", schema, ())
        TableWriter(sink, table, identity()).load(batches(row(1), schema=schema), Lsn(100))
        assert not has_vectors(sink)

    def test_a_setting_changes_the_way_and_auto_leaves_it_then(self, sink: DeltaSink) -> None:
        load(sink, row(1), row(2), row(3))
        on_read = replace(sink, merge_tables={"public.t": "on_read"})
        apply(on_read, update(1, 5), 110)
        apply(sink, update(2, 6), 120)
        assert has_vectors(sink)
        on_write = replace(sink, merge_tables={"public.t": "on_write"})
        writer = writer_of(on_write)
        writer.apply(net(update(3, 7)), Lsn(130))
        writer.maintain([])
        apply(sink, update(1, 8), 140)
        assert not has_vectors(sink)
        assert rows_of(sink) == [row(1, 8), row(2, 6), row(3, 7)]


def test_slow_merges_are_named_with_what_another_way_would_write(sink: DeltaSink) -> None:
    sink = replace(sink, merge="on_write")
    load(sink, *(row(id_) for id_ in range(100)))
    folder = LocalFolder(Path(location(sink)))
    assert advice_on_merges("public.t", folder, slow_s=0) is None, "there was no merge yet"
    apply(sink, update(1, 5), 110)
    apply(sink, update(2, 6), 120)
    advice = advice_on_merges("public.t", folder, slow_s=0)
    assert advice is not None
    assert "the last 2 merges into the target took 0." in advice
    assert "rewrote 99 unchanged row(s) for 1 changed row(s)" in advice
    assert 'merge_tables = { "public.t" = "on_read" }' in advice
    assert advice_on_merges("public.t", folder, slow_s=60) is None
    assert advice_on_merges("public.u", LocalFolder(folder.root.with_name("u")), slow_s=0) is None


class TestLog:
    """What the log says is read exactly, or refused."""

    def test_text_that_ends_lines_elsewhere_stays_in_its_action(self, sink: DeltaSink) -> None:
        schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("a", pa.int32())])
        table = TargetTable("public", "t", schema, ("id",))
        keys = ["x\u2028", "\u0085", "\x1c\x0b", "\x0c"]
        rows = [{"id": key, "a": 0} for key in keys]
        TableWriter(sink, table, identity()).load(batches(*rows, schema=schema), Lsn(100))
        for position, key in enumerate(keys, 101):
            DeltaTable(location(sink)).optimize.compact()
            t = ChangesBuilder(schema)
            t.update({"id": key, "a": position})
            applied = TableWriter(sink, table, identity()).apply(net(t, table=table), Lsn(position))
            assert applied.rows_updated == 1
        assert sorted(row["a"] for row in scan(location(sink)).to_pylist()) == [101, 102, 103, 104]

    @pytest.mark.parametrize("is_known", [True, False])
    def test_a_version_that_is_missing_is_not_the_end(
        self, sink: DeltaSink, *, is_known: bool
    ) -> None:
        load(sink, row(1))
        writer_of(sink).position()
        known = newest_snapshot(LocalFolder(Path(location(sink))))
        for number in range(3):
            apply(sink, update(1, number), 110 + number)
        (Path(location(sink)) / commit_name(1)).unlink()
        if is_known and known is not None:
            remember(known)
        else:
            KNOWN_TABLES.clear()
        with pytest.raises(PgsluiceError, match="lacks the file of version 1"):
            apply(sink, update(1, 9), 120)

    def test_a_log_that_cannot_be_read_is_not_an_empty_place(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        logs = Path(location(sink), "_delta_log")
        DeltaTable(location(sink)).create_checkpoint()
        (single,) = logs.glob("*.checkpoint.parquet")
        single.rename(logs / f"{0:020}.checkpoint.{1:010}.{2:010}.parquet")
        (Path(location(sink)) / commit_name(0)).unlink()
        KNOWN_TABLES.clear()
        with pytest.raises(PgsluiceError, match="no complete classic checkpoint"):
            load(sink, row(2))

    def test_another_table_in_the_same_place_is_noticed(self, sink: DeltaSink) -> None:
        load(sink, row(1))
        shutil.rmtree(location(sink))
        assert writer_of(sink).position() is None
        load(sink, row(2))
        assert rows_of(sink) == [row(2)]


def test_a_data_file_that_is_gone_is_an_error_of_its_table(sink: DeltaSink) -> None:
    load(sink, row(1))
    for file in Path(location(sink)).glob("*.parquet"):
        file.unlink()
    with pytest.raises(PgsluiceError, match=r"data file .* does not exist") as caught:
        apply(sink, update(1, 5), 110)
    assert Failure.of(caught.value).remedy is Remedy.RETRY


def test_a_file_system_without_hard_links_is_named(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(TableError, match="refuses hard links"):
        load(sink, row(1))
    assert writer_of(sink).position() is None
    config = parse_sink({"type": "delta", "path": sink.path})
    assert "refuses hard links" in (config.why_unreachable() or ""), "check asks it"
    assert not list(Path(location(sink)).parent.glob(".*"))


class TestPowerCut:
    """A position counts when all that it stands for is on the disk."""

    @pytest.mark.parametrize("way", ["on_read", "on_write"])
    def test_what_a_commit_names_is_written_out_before_its_position_counts(
        self, sink: DeltaSink, way: Merge, synced: list[Path]
    ) -> None:
        sink = replace(sink, merge=way)
        load(sink, row(1), row(2), row(3))
        self._assert_synced(sink, synced, 0)
        synced.clear()
        version = apply(sink, update(2, 5), 110).version
        self._assert_synced(sink, synced, version)

    def test_a_vector_s_commit_is_made_after_its_files_are_written_out(
        self, sink: DeltaSink, synced: list[Path]
    ) -> None:
        load(sink, row(1), row(2), row(3))
        synced.clear()
        failpoints.arm("delta.before_commit=eio,delta.clean_up=eio")
        with pytest.raises(TargetUnreachable, match="failpoint"):
            apply(sink, update(2, 5), 110)
        failpoints.arm("")
        folder = Path(location(sink))
        new = [folder, folder / "_dv", *(folder / "_dv").glob("*.bin")]
        assert len(new) == 3
        assert {*new} <= {*synced}
        assert [path for path in synced if path.suffix == ".parquet"]

    @pytest.mark.parametrize("way", ["on_read", "on_write"])
    def test_the_commit_of_a_killed_attempt_is_written_out_when_it_is_found(
        self, sink: DeltaSink, way: Merge, synced: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = replace(sink, merge=way)
        load(sink, row(1), row(2))
        version = apply(sink, update(2, 5), 110).version
        monkeypatch.setattr("pgsluice.sinks.delta.log.durability.SETTLED", {})
        synced.clear()
        assert apply(sink, update(2, 5), 110).skipped
        self._assert_synced(sink, synced, version)

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """The files and folders that the operating system was asked to write out."""
        paths: list[Path] = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            fsync(descriptor)
            paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())

        monkeypatch.setattr(os, "fsync", noted)
        return paths

    def _assert_synced(self, sink: DeltaSink, synced: list[Path], version: int) -> None:
        folder = Path(location(sink))
        added, before = self._added(folder, version), set[Path]()
        for earlier in range(version):
            before |= self._added(folder, earlier)
        assert added - before
        assert {*(added - before), folder, folder / "_delta_log"} <= {*synced}

    def _added(self, folder: Path, version: int) -> set[Path]:
        actions = read_commit(LocalFolder(folder), version) or []
        return {folder / action["add"]["path"] for action in actions if "add" in action}


class TestUpkeep:
    """The folder stays small, and readers of kept versions find their files."""

    def test_small_files_are_joined_and_dead_rows_leave(self, sink: DeltaSink) -> None:
        load(sink, *(row(id_) for id_ in range(100)))
        for number in range(FILES_OF_A_SIZE + 5):
            writer = writer_of(sink)
            writer.apply(net(update(number, 5)), Lsn(101 + number))
            writer.maintain([])
        assert len(DeltaTable(location(sink)).file_uris()) < 8
        assert writer_of(sink).position() == 101 + FILES_OF_A_SIZE + 4
        t = changes()
        for id_ in range(50):
            t.delete({"id": id_})
        writer = writer_of(sink)
        writer.apply(net(t), Lsn(200))
        writer.maintain([])
        assert rows_of(sink) == [row(id_) for id_ in range(50, 100)]
        assert not _vectors_in_use(sink)

    def test_files_that_no_kept_version_needs_are_deleted(
        self, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pgsluice.sinks.delta.upkeep.MANY_COMMITS", 6)
        load(sink, *(row(id_) for id_ in range(100)))
        kept = apply(sink, update(1, 7), 101).version
        expected = rows_of(sink)
        for number in range(20):
            writer = writer_of(sink)
            writer.apply(net(update(number, 5)), Lsn(110 + number))
            writer.maintain([kept])
        vectors = list(Path(location(sink), "_dv").glob("*.bin"))
        assert len(vectors) < 12
        assert not list(Path(location(sink), "_dv").glob("*.tmp"))
        old = DeltaTable(location(sink), version=kept)
        rows = pa.RecordBatchReader.from_stream(old.scan()).read_all().to_pylist()
        assert sorted(rows, key=lambda one: one["id"]) == expected

    def test_what_killed_attempts_left_is_deleted_after_a_day(self, sink: DeltaSink) -> None:
        load(sink, row(1), row(2), row(3))
        failpoints.arm("delta.before_commit=eio,delta.clean_up=eio")
        with pytest.raises(TargetUnreachable, match="failpoint"):
            apply(sink, update(1, 5), 110)
        failpoints.arm("")
        Path(location(sink), "_dv", "commit-1.tmp").touch()
        left = [path for path in Path(location(sink)).rglob("*.*") if path.is_file()]
        apply(sink, update(1, 5), 110)
        day_ago = time.time() - 25 * 3600
        for path in Path(location(sink)).rglob("*.*"):
            if path.is_file() and "_delta_log" not in path.parts:
                os.utime(path, (day_ago, day_ago))
        writer = writer_of(sink)
        writer.apply(net(update(2, 6)), Lsn(120))
        writer.delete_leftovers(time.time() - 24 * 3600)
        orphans = [path for path in left if path.name.endswith(("tmp", "bin"))]
        assert len(orphans) == 2
        assert not any(path.exists() for path in orphans)
        assert rows_of(sink) == [row(1, 5), row(2, 6), row(3)]

    def test_a_table_goes_back_to_merging_on_write(self, sink: DeltaSink) -> None:
        load(sink, row(1), row(2), row(3))
        apply(sink, update(2, 5), 110)
        back = replace(sink, merge="on_write")
        writer = writer_of(back)
        writer.apply(net(update(1, 4)), Lsn(120))
        writer.maintain([])
        table = DeltaTable(location(sink))
        assert "deletionVectors" not in (table.protocol().reader_features or [])
        expected = [row(1, 4), row(2, 5), row(3)]
        assert table.to_pyarrow_table().sort_by("id").to_pylist() == expected
        assert not apply(back, update(3, 6), 130).skipped

    def test_vectors_that_others_allowed_stay_allowed(self, sink: DeltaSink) -> None:
        plain = replace(sink, merge="on_write")
        load(plain, row(1), row(2))
        DeltaTable(location(sink)).alter.add_feature(
            TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        )
        writer = writer_of(plain)
        writer.apply(net(update(1, 4)), Lsn(110))
        writer.maintain([])
        features = DeltaTable(location(sink)).protocol().reader_features or []
        assert "deletionVectors" in features
        assert rows_of(sink) == [row(1, 4, "big"), row(2)]


def _vectors_in_use(sink: DeltaSink) -> list[str]:
    snapshot = newest_snapshot(LocalFolder(Path(location(sink))))
    assert snapshot is not None
    return [name for name, file in snapshot.files.items() if file.vector is not None]
