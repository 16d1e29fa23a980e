"""The source in a real Spark session, over spools that the tests write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.support.spools import SpoolMaker, orders

from pgsluice.lsn import Lsn


class Query:
    """A streaming query that records the ids of its batches; it can be started many times."""

    def __init__(self, spark: Any, maker: SpoolMaker, **options: str) -> None:
        given = {"spool": str(maker.path), "subscription": "q", **options}
        self.frame = spark.readStream.format("pgoutput").options(**given).load()
        self.checkpoint = maker.path.parent / "checkpoint"
        self.batches: list[list[int]] = []

    def keep(self, frame: Any, _number: int) -> None:
        """Record a batch's ids."""
        self.batches.append(sorted(row.id for row in frame.select("id").collect()))

    def start(self, each: Callable[[Any, int], None] | None = None, **trigger: Any) -> Any:
        """Start the query, or restart it from its checkpoint."""
        writer = self.frame.writeStream.foreachBatch(each or self.keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, each: Callable[[Any, int], None] | None = None) -> list[list[int]]:
        """Run with the trigger availableNow, and return the ids of the batches."""
        self.batches = []
        self.start(each, availableNow=True).awaitTermination()
        return self.batches

    def fails(self, each: Callable[[Any, int], None] | None = None) -> str:
        """Run, and return the text of the error that ends the query."""
        with pytest.raises(Exception) as caught:
            self.run(each)
        return str(caught.value)


def broken(_frame: Any, _number: int) -> None:
    raise RuntimeError("the sink is down")


def test_a_query_survives_a_failed_first_batch_and_fails_on_a_dropped_start(
    spark: Any, spool_maker: SpoolMaker
) -> None:
    spool_maker.segment(orders(1, 2))
    query = Query(spark, spool_maker, table="public.orders", max_rows_per_batch="1")
    assert "the sink is down" in query.fails(broken)
    spool_maker.segment(orders(3), orders(4))
    end = spool_maker.segment(orders(5))
    assert query.run() == [[1, 2], [3], [4], [5]], "the failed batch is repeated unchanged"
    assert query.run() == [], "there is no new data"
    spool_maker.segment([])
    assert query.run() == [[]], "a batch without changes has no tasks"
    offsets = (query.checkpoint / "offsets" / "3").read_text().splitlines()
    assert json.loads(offsets[-1])["lsn"] == str(end)
    dropped = spool_maker.segment(orders(7))
    spool_maker.segment(orders(8))
    spool_maker.writer.release(dropped)
    assert f"to {dropped}, where it starts" in query.fails()


def test_what_does_not_belong_together_is_refused(spark: Any, spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    query = Query(spark, spool_maker, table="public.orders")
    assert query.run() == [[1]]
    query.checkpoint = query.checkpoint.with_name("another")
    assert "another checkpoint has read subscription q up to 0/1100" in query.fails()
    no_name = Query(spark, spool_maker, table="public.orders", ending_lsn="0/1")
    assert "option ending_lsn works with spark.read only" in no_name.fails()


def fail_the_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the worker failed")


def test_a_running_query_follows_the_spool(spark: Any, spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    query = Query(spark, spool_maker, table="public.orders")
    seen: list[list[int]] = []

    def twice(frame: Any, _number: int) -> None:
        """Read the frame twice; the first attempts of the second read fail."""
        once = frame.select("id")
        again = once.mapInArrow(fail_the_first_attempt, "id INT")
        seen.extend(sorted(row.id for row in read.collect()) for read in (once, again))

    running = query.start(twice)
    try:
        running.processAllAvailable()
        spool_maker.segment(orders(2), orders(3))
        running.processAllAvailable()
        progress = running.lastProgress
    finally:
        running.stop()
        running.awaitTermination()
    assert [ids for ids in seen if ids] == [[1], [1], [2, 3], [2, 3]]
    facts = json.loads(progress.sources[0].latestOffset)
    assert facts["lsn"] == facts["frontier"] == str(Lsn(spool_maker.at))
    assert set(facts) == {"lsn", "frontier", "lag_bytes", "lag_seconds", "slot"}
