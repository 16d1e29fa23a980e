"""A stream on Spark 4.0 and 4.1, which say neither where a batch starts nor which limit it has."""

from __future__ import annotations

import pytest
from tests.support.spools import SCHEMA, START, SpoolMaker, orders, stream

from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.streaming.stream import PgoutputStreamReader
from pgsluice.spool import find_record


def older(maker: SpoolMaker, **options: str) -> PgoutputStreamReader:
    """A reader as these versions make it."""
    return PgoutputStreamReader(stream(maker, **options).options, SCHEMA, gives_start=False)


def ids(reader: PgoutputStreamReader, start: dict[str, str], end: dict[str, str]) -> list[int]:
    return [
        number
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for number in batch.column("id").to_pylist()
    ]


def test_batches_have_the_limits_of_the_options(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1), orders(2, 3, 4), orders(5), orders(6))
    spool_maker.segment(orders(7), orders(8))
    reader = older(spool_maker, max_rows_per_batch="2")
    offset = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset()) != offset:
        batches.append(ids(reader, offset, end))
        offset = end
    assert batches == [[1], [2, 3, 4], [5, 6], [7, 8]]


def test_a_restarted_query_continues_after_the_last_planned_batch(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1, 2))
    spool_maker.segment(orders(3, 4))
    spool_maker.segment(orders(5, 6))
    first = older(spool_maker, max_rows_per_batch="2")
    start = first.initialOffset()
    end = first.latestOffset()
    assert ids(first, start, end) == [1, 2]
    first.stop()
    # Its checkpoint has the batch. Spark asks without a word about it; availableNow asks first.
    again = older(spool_maker, max_rows_per_batch="2")
    following = again.latestOffset()
    assert ids(again, start, end) == [1, 2]
    assert ids(again, end, following) == [3, 4]
    assert ids(again, following, again.latestOffset()) == [5, 6]


def test_a_query_with_available_now_asks_for_its_end_before_its_start(
    spool_maker: SpoolMaker,
) -> None:
    spool_maker.segment(orders(1, 2))
    reader = older(spool_maker)
    end = reader.latestOffset()
    assert ids(reader, reader.initialOffset(), end) == [1, 2]


def test_the_spool_keeps_what_spark_has_not_committed(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    spool_maker.segment(orders(2))
    reader = older(spool_maker, max_rows_per_batch="1")
    start = reader.initialOffset()
    end = reader.latestOffset()
    reader.partitions(start, end)
    following = reader.latestOffset()
    reader.partitions(end, following)
    assert _position(spool_maker) == START
    reader.commit(end)
    assert _position(spool_maker) == Lsn.parse(end["lsn"])
    assert ids(reader, end, following) == [2]


def test_a_subscription_that_a_newer_spark_has_read_is_refused(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    newer = stream(spool_maker)
    end = newer.latestOffset(newer.initialOffset())
    newer.latestOffset(end)  # which commits it
    newer.stop()
    with pytest.raises(ConfigError, match=r"Spark 4\.2 or newer has read subscription") as info:
        older(spool_maker).latestOffset()
    assert "continue the query with Spark 4.2" in (info.value.hint or "")


def test_a_newer_spark_continues_and_there_is_no_way_back(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    first = older(spool_maker)
    start = first.initialOffset()
    end = first.latestOffset()
    first.partitions(start, end)
    first.stop()
    spool_maker.segment(orders(2))
    newer = stream(spool_maker)
    following = newer.latestOffset(end)
    assert ids(newer, end, following) == [2]
    newer.stop()
    with pytest.raises(ConfigError, match=r"Spark 4\.2 or newer has read subscription"):
        older(spool_maker).latestOffset()


def _position(maker: SpoolMaker) -> Lsn:
    record = find_record(maker.spool.path, "q")
    assert record is not None
    return record.position
