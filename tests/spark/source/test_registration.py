"""A query's subscription is tied to its table, its checkpoint and its spool."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.support.spools import SCHEMA, START, SpoolMaker, configured, orders, stream

import pgsluice
from pgsluice.errors import ConfigError, SpoolBusy, SpoolHole
from pgsluice.lsn import Lsn
from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.streaming.stream import PgoutputStreamReader
from pgsluice.spool import find_record


def read_all(reader: PgoutputStreamReader) -> dict[str, str]:
    """Plan one batch and commit it; the offset in the query's checkpoint."""
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(end, ReadMaxRows(1)) == end
    reader.stop()
    return end


def test_a_checkpoint_goes_on_where_it_was(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    end = read_all(stream(spool_maker))
    spool_maker.segment(orders(2))
    again = stream(spool_maker)
    assert again.latestOffset(end, ReadAllAvailable())["lsn"] == str(Lsn(START + 0x200))


def test_a_query_that_committed_nothing_starts_again(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    first = stream(spool_maker)
    offset = first.initialOffset()
    first.latestOffset(offset, ReadAllAvailable())
    first.stop()
    assert stream(spool_maker).initialOffset() == offset


@pytest.mark.parametrize("options", [{"starting_position": "earliest"}, {}], ids=["from", "plain"])
def test_a_subscription_that_retention_had_not_seen_is_registered_again(
    options: dict[str, str], spool_maker: SpoolMaker
) -> None:
    """The segments that a registration found were deleted by the records of before."""
    end = spool_maker.segment(orders(1))
    first = stream(spool_maker, **options)
    offset = first.initialOffset()
    spool_maker.writer.release(end)
    with pytest.raises(SpoolHole):
        first.latestOffset(offset, ReadAllAvailable())
    first.stop()
    last = spool_maker.segment(orders(2))
    again = stream(spool_maker, **options)
    offset = again.initialOffset()
    assert offset["lsn"] == str(end)
    assert again.latestOffset(offset, ReadAllAvailable())["lsn"] == str(last)


def test_a_new_checkpoint_of_an_old_subscription_is_refused(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    read_all(stream(spool_maker))
    with pytest.raises(
        ConfigError, match="another checkpoint has read subscription q up to 0/1100"
    ) as info:
        stream(spool_maker).initialOffset()
    assert "starting_position" in (info.value.hint or "")


def test_a_new_checkpoint_may_say_where_it_starts(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    before = read_all(stream(spool_maker))
    again = stream(spool_maker, starting_position="earliest")
    offset = again.initialOffset()
    assert offset["lsn"] == str(Lsn(START))
    again.stop()
    with pytest.raises(ConfigError, match="but of an earlier subscription of that name"):
        stream(spool_maker).latestOffset(before, ReadAllAvailable())


@pytest.mark.parametrize(
    ("position", "lsn"),
    [("earliest", START), ("NOW", START + 0x200), ("0/1100", START + 0x100)],
)
def test_a_new_subscription_starts_where_it_is_told(
    spool_maker: SpoolMaker, position: str, lsn: int
) -> None:
    spool_maker.segment(orders(1))
    spool_maker.segment(orders(2))
    assert stream(spool_maker, starting_position=position).initialOffset()["lsn"] == str(Lsn(lsn))


@pytest.mark.parametrize("position", ["0/1", "FF/0"])
def test_a_start_outside_the_spool_is_refused(spool_maker: SpoolMaker, position: str) -> None:
    with pytest.raises(ConfigError, match="the spool has the changes from 0/1000 to 0/1000"):
        stream(spool_maker, starting_position=position).initialOffset()


def test_the_start_of_a_new_subscription_is_logged(
    spool_maker: SpoolMaker, caplog: pytest.LogCaptureFixture
) -> None:
    stream(spool_maker, starting_position="now").initialOffset()
    assert "subscription q starts at 0/1000: changes that commit from now on" in caplog.text


def test_another_table_on_the_same_subscription_is_refused(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    read_all(stream(spool_maker))
    other = stream(spool_maker, table="public.other")
    with pytest.raises(
        ConfigError, match=r"q has read table public\.orders so far, but this query reads table pub"
    ):
        other.initialOffset()


def test_another_subscription_on_the_same_checkpoint_is_refused(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    end = read_all(stream(spool_maker))
    read_all(stream(spool_maker, subscription="b"))
    for name in ("b", "c"):
        with pytest.raises(
            ConfigError,
            match=f"is not one of subscription {name} of this spool, but of subscription q",
        ):
            stream(spool_maker, subscription=name).latestOffset(end, ReadAllAvailable())
    assert [each.name for each in pgsluice.subscriptions(spool_maker.path)] == ["b", "q"]


def test_a_checkpoint_of_another_spool_is_refused(spool_maker: SpoolMaker, tmp_path: Path) -> None:
    spool_maker.segment(orders(1))
    end = read_all(stream(spool_maker))
    other = SpoolMaker(tmp_path / "other")
    other.segment(orders(1))
    reader = stream(other)
    for call in (
        lambda: reader.latestOffset(end, ReadAllAvailable()),
        lambda: reader.partitions(end, end),
    ):
        with pytest.raises(ConfigError, match="was dropped, or belongs to another spool"):
            call()
    other.close()


def test_a_checkpoint_of_an_earlier_version_goes_on(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    first = stream(spool_maker)
    first.initialOffset()
    first.stop()
    end = {"lsn": str(Lsn(START + 0x100))}
    again = stream(spool_maker)
    assert again.latestOffset(end, ReadAllAvailable())["lsn"] == end["lsn"]


def test_two_queries_cannot_read_one_subscription(spool_maker: SpoolMaker) -> None:
    first = stream(spool_maker)
    first.initialOffset()
    with pytest.raises(SpoolBusy, match="another process runs the subscription q"):
        PgoutputStreamReader(first.options, SCHEMA, lock_s=0.0).initialOffset()
    first.stop()
    stream(spool_maker).initialOffset()


def test_subscriptions_are_listed(spool_maker: SpoolMaker) -> None:
    configured(spool_maker, "lake")
    spool_maker.segment(orders(1))
    stream(spool_maker, starting_position="earliest").initialOffset()
    lake, query = pgsluice.subscriptions(spool_maker.path)
    assert (lake.name, lake.reads, lake.is_configured) == ("lake", "current", True)
    assert (query.name, query.reads, query.is_configured) == ("q", "table public.orders", False)
    assert query.position == START
    assert query.held_bytes > 0
    assert query.moved_at <= datetime.now(UTC)


def test_a_subscription_is_dropped_while_the_spool_is_written(spool_maker: SpoolMaker) -> None:
    configured(spool_maker, "lake")
    reader = stream(spool_maker)
    reader.initialOffset()
    with pytest.raises(SpoolBusy, match="another process runs the subscription q"):
        pgsluice.drop_subscription(spool_maker.path, "q")
    reader.stop()
    pgsluice.drop_subscription(spool_maker.path, "q")
    assert find_record(spool_maker.path, "q") is None
    with pytest.raises(ConfigError, match="has no subscription 'q'"):
        pgsluice.drop_subscription(spool_maker.path, "q")
    with pytest.raises(ConfigError, match="was created by a pgsluice configuration"):
        pgsluice.drop_subscription(spool_maker.path, "lake")


def test_an_error_of_the_options_comes_when_spark_uses_the_reader(tmp_path: Path) -> None:
    """What ``streamReader`` raises, Spark's runner replaces by an error of its own."""
    reader = PgoutputDataSource({"spool": str(tmp_path), "table": "a.b"}).streamReader(SCHEMA)
    for call in (
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(ConfigError, match="needs the option subscription"):
            call()
    reader.stop()
