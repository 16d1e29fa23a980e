"""The data source of a subscription's query: it says where each batch ends."""

from __future__ import annotations

import json
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.support.spools import OID, START, SpoolMaker, configured, orders, transactional

from pgsluice.errors import ConfigError, SpoolError
from pgsluice.events import CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.spark.source.spool_stream import offset_of
from pgsluice.spool import (
    Owner,
    RecordStore,
    SpoolReader,
    TableRecord,
    TableState,
    find_record,
)
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.records.copy_status import CopyStatus, write_copy_status
from pgsluice.subscription.barrier import BarrierOwner
from pgsluice.subscription.batch_reader import BatchReader
from pgsluice.subscription.planning import TableWork, plan_tables
from pgsluice.subscription.query import logged_end
from pgsluice.subscription.source import read_batches

FIRST = offset_of(Lsn(START))


@pytest.fixture(autouse=True)
def _sigterm_as_it_was() -> Iterator[None]:
    """A reader takes SIGTERM over in the process that it plans in: here the test's own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def reader_of(maker: SpoolMaker) -> BatchReader:
    """A reader as the data source makes it."""
    return BatchReader(maker.path, "q", max_rows=1_000, max_bytes=1 << 20)


def ends(reader: BatchReader, end: Lsn) -> list[str]:
    """Where a batch ends, as its task reads it: with pickled copies of the reader."""
    copy: BatchReader = pickle.loads(pickle.dumps(reader_of_same(reader)))
    return [
        batch.column("end")[0].as_py()
        for partition in reader.partitions(FIRST, offset_of(end))
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
    ]


def planned(maker: SpoolMaker, end: Lsn) -> list[TableWork]:
    """The work of a batch, as the driver plans it."""
    record = find_record(maker.path, "q")
    assert record is not None
    return plan_tables(SpoolReader(maker.path), record, end)


def reader_of_same(reader: BatchReader) -> BatchReader:
    """A second reader as Spark makes one: from the same options, before anything is opened."""
    return BatchReader(reader._path, "q", max_rows=1_000, max_bytes=1 << 20)


def test_the_driver_keeps_the_record(maker: SpoolMaker) -> None:
    configured(maker)
    record = find_record(maker.path, "q")
    end = maker.segment(orders(1))
    reader = reader_of(maker)
    assert reader.initialOffset() == FIRST
    reader.latestOffset(offset_of(end), ReadAllAvailable())
    assert find_record(maker.path, "q") == record
    assert ends(reader, end) == [str(end)]
    (work,) = planned(maker, end)
    assert work.relation_oid == OID
    assert work.size_bytes > 0


def test_sparks_progress_says_how_far_copies_are(maker: SpoolMaker) -> None:
    configured(maker)
    reader = reader_of(maker)
    assert "copies" not in (reader.reportLatestOffset() or {})
    record = find_record(maker.path, "q")
    assert record is not None
    table = TableRecord("public", "big", TableState.DATA_COPY)
    RecordStore.create(maker.path, replace(record, tables={OID: table}))
    amount = CopyAmount(1, 4, 1000, 1 << 20, 4 << 20, 100, 2**18)
    folder = subscription_folder(maker.path, "q")
    write_copy_status(folder, CopyStatus({OID: amount}, {}, 0, 1, amount))
    facts: dict[str, Any] = reader_of(maker).reportLatestOffset() or {}
    far = {
        "ranges": 1, "all_ranges": 4, "rows": 1000, "bytes": 1 << 20, "all_bytes": 4 << 20,
        "rows_per_s": 100, "bytes_per_s": 2**18, "left_s": 12.0,
    }  # fmt: skip
    assert facts["copies"] == {"tables": 0, "all_tables": 1, **far, "by_table": {"public.big": far}}
    json.dumps(facts)


def test_messages_advance_a_subscription_and_are_no_tables_work(maker: SpoolMaker) -> None:
    configured(maker)
    maker.message("outbox", b"alone")
    end = maker.segment([transactional("outbox", b"in a transaction")])
    reader = reader_of(maker)
    assert reader.latestOffset(FIRST, ReadAllAvailable()) == offset_of(end)
    assert ends(reader, end) == [str(end)]
    assert planned(maker, end) == []


def test_a_batch_ends_inside_a_segment_at_a_barrier(maker: SpoolMaker) -> None:
    configured(maker)
    end = maker.segment(orders(1))
    inside = Lsn(int(end) - 1)
    reader = reader_of(maker)
    with BarrierOwner(subscription_folder(maker.path, "q"), ()) as owner:
        owner.move(inside)
        assert reader.latestOffset(FIRST, ReadAllAvailable()) == offset_of(inside)
        held = offset_of(inside)
        assert reader.latestOffset(held, ReadAllAvailable()) == held
    assert reader.latestOffset(held, ReadAllAvailable()) == offset_of(end)


def test_a_checkpoint_older_than_the_spool_is_no_error(maker: SpoolMaker) -> None:
    first = maker.segment(orders(1))
    end = maker.segment(orders(2))
    configured(maker)
    maker.writer.release(first)
    assert reader_of(maker).latestOffset(FIRST, ReadAllAvailable()) == offset_of(end)


def test_a_subscription_that_no_configuration_registered_is_refused(maker: SpoolMaker) -> None:
    with pytest.raises(SpoolError, match="q is not registered"):
        reader_of(maker).initialOffset()
    configured(maker, owner=Owner.SOURCE)
    with pytest.raises(ConfigError, match="q belongs to a query"):
        reader_of(maker).initialOffset()


def test_a_batch_ends_where_spark_has_logged_it(spark: Any, maker: SpoolMaker) -> None:
    configured(maker)
    first = maker.segment(orders(1))
    checkpoint = maker.path.parent / "c"
    frame = read_batches(spark, maker.path, "q", max_rows=10, max_bytes=1 << 20)
    assert frame.schema.simpleString() == "struct<end:string>"
    asked: list[str] = []
    logged: list[Lsn | None] = []

    def take(batch: Any, number: int) -> None:
        asked.extend(row.end for row in batch.collect())
        logged.append(logged_end(checkpoint, number))

    def run() -> None:
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    run()
    second = maker.segment([])
    run()
    assert asked == [str(first), str(second)]
    assert logged == [first, second]


@pytest.mark.parametrize("log", ["v2\n{}\n{}", "v1\n{}", 'v1\n{}\n{"lsn": 7}', "v1\n{}\nnull", ""])
def test_a_log_of_another_form_does_not_say_where_a_batch_ends(tmp_path: Path, log: str) -> None:
    (tmp_path / "offsets").mkdir()
    assert logged_end(tmp_path, 0) is None
    (tmp_path / "offsets" / "0").write_text(log)
    assert logged_end(tmp_path, 0) is None
