"""The Delta sink with ``merge = "on_read"``: rows die by deletion vectors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Overtaken, Sink, TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
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


def scan(location: str) -> pa.Table:
    """A table as deltalake's engine reads it, which knows vectors."""
    return pa.RecordBatchReader.from_stream(DeltaTable(location).scan()).read_all()


class TestContract(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(
            f"{tmp_path}/lake/{{schema}}/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys"
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
        with pytest.raises(TableError, match="was changed by others"):
            apply(sink, update(1, 3), 120)

    def test_a_rule_of_the_table_that_a_commit_would_break_is_refused(
        self, sink: DeltaSink
    ) -> None:
        load(sink, row(1))
        DeltaTable(location(sink)).alter.add_constraint({"positive": "id > 0"})
        with pytest.raises(TableError, match=r"a constraint \(positive\)"):
            apply(sink, update(1, 3), 120)


@pytest.mark.parametrize("harm", ["lost", "cut", "wrong byte"])
def test_a_damaged_key_file_is_made_again(
    sink: DeltaSink, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(sink, row(1), row(2))
    apply(sink, update(2, 5), 110)
    apply(sink, update(1, 6), 120)
    monkeypatch.setattr("pgsluice.sinks.delta.key_index._OPENED", OrderedDict())
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
