"""The data source of a subscription's query: one row for each table with work."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.support.spools import OID, START, SpoolMaker, configured, orders, transactional

from pgsluice.errors import ConfigError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.spool_stream import offset_of
from pgsluice.spool import Owner, find_record
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.barrier import BarrierOwner
from pgsluice.subscription.planning import NO_TABLE, TableWork
from pgsluice.subscription.source import TableWorkReader, read_table_work

FIRST = offset_of(Lsn(START))


@pytest.fixture(autouse=True)
def _sigterm_as_it_was() -> Iterator[None]:
    """A reader takes SIGTERM over in the process that it plans in: here the test's own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def reader_of(maker: SpoolMaker) -> TableWorkReader:
    """A reader as the data source makes it."""
    return TableWorkReader(maker.path, "q", max_rows=1_000, max_bytes=1 << 20)


def planned(reader: TableWorkReader, end: Lsn) -> list[TableWork]:
    """The work of a batch, as its tasks read it: with pickled copies of the reader."""
    copy: TableWorkReader = pickle.loads(pickle.dumps(reader_of_same(reader)))
    return [
        pickle.loads(batch.column("work")[0].as_py())
        for partition in reader.partitions(FIRST, offset_of(end))
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
    ]


def reader_of_same(reader: TableWorkReader) -> TableWorkReader:
    """A second reader as Spark makes one: from the same options, before anything is opened."""
    return TableWorkReader(reader._path, "q", max_rows=1_000, max_bytes=1 << 20)


def test_the_driver_keeps_the_record(maker: SpoolMaker) -> None:
    configured(maker)
    record = find_record(maker.path, "q")
    end = maker.segment(orders(1))
    reader = reader_of(maker)
    assert reader.initialOffset() == FIRST
    reader.latestOffset(offset_of(end), ReadAllAvailable())
    assert find_record(maker.path, "q") == record
    assert [work.relation_oid for work in planned(reader, end)] == [OID]


def test_messages_advance_a_subscription_and_are_no_tables_work(maker: SpoolMaker) -> None:
    configured(maker)
    maker.message("outbox", b"alone")
    end = maker.segment([transactional("outbox", b"in a transaction")])
    reader = reader_of(maker)
    assert reader.latestOffset(FIRST, ReadAllAvailable()) == offset_of(end)
    (work,) = planned(reader, end)
    assert (work.relation_oid, work.through) == (NO_TABLE, end)


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


def test_a_query_gets_a_row_for_each_table_with_work(spark: Any, maker: SpoolMaker) -> None:
    configured(maker)
    maker.segment(orders(1))
    frame = read_table_work(spark, maker.path, "q", max_rows=10, max_bytes=1 << 20)
    assert frame.schema.simpleString() == "struct<work:binary>"
    batches: list[list[int]] = []

    def collect(batch: Any, _number: int) -> None:
        batches.append([pickle.loads(row.work).relation_oid for row in batch.collect()])

    def run() -> None:
        writer = frame.writeStream.foreachBatch(collect).trigger(availableNow=True)
        writer.option("checkpointLocation", str(maker.path.parent / "c")).start().awaitTermination()

    run()
    assert batches == [[OID]]
    configured(maker)
    maker.segment([])
    run()
    assert batches == [[OID], [NO_TABLE]], "a batch in which no table changes"
