"""The planning reader, called as Spark calls it, but without Spark's processes."""

from __future__ import annotations

import json
import pickle
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType, VariantType
from tests.support.spools import (
    INT4,
    OID,
    SCHEMA,
    START,
    TEXT,
    SpoolMaker,
    configured,
    orders,
    relation,
    stream,
)

from pgsluice.errors import ConfigError, SourceUnreachable, SpoolError, SpoolHole
from pgsluice.lsn import Lsn
from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.reading import PARTITION_BYTES, plan
from pgsluice.spark.source.streaming.planning_process import retry_transient
from pgsluice.spark.source.streaming.stream import PgoutputStreamReader
from pgsluice.spool import Spool, SpoolIdentity, SpoolReader, find_record
from pgsluice.wire import POSTGRES_EPOCH_US, Insert, TupleData

ENVELOPE = StructType()
for name in ("schema", "table", "key", "row", "prefix", "content"):
    kind = {"key": VariantType(), "row": VariantType(), "content": BinaryType()}
    ENVELOPE.add(name, kind.get(name, StringType()))
for field in SCHEMA.fields[2:]:
    ENVELOPE.add(field)
FIRST = {"lsn": str(Lsn(START))}


def at(lsn: int) -> dict[str, str]:
    return {"lsn": str(Lsn(lsn))}


def lsn_of(offset: dict[str, str]) -> Lsn:
    return Lsn.parse(offset["lsn"])


def registered(maker: SpoolMaker) -> PgoutputStreamReader:
    """A query that has registered; its offsets need not name the subscription."""
    reader = stream(maker)
    reader.initialOffset()
    return reader


def ids(reader: PgoutputStreamReader, start: dict[str, str], end: dict[str, str]) -> list[int]:
    """The ids that a batch's tasks read, each with a pickled copy of the reader."""
    copy: PgoutputStreamReader = pickle.loads(pickle.dumps(stream_of(reader)))
    ids: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            ids += batch.column("id").to_pylist()
    return ids


def stream_of(reader: PgoutputStreamReader) -> PgoutputStreamReader:
    """A new reader with the same options, like those that Spark makes for tasks."""
    return PgoutputStreamReader(reader.options, SCHEMA)


@pytest.mark.parametrize(
    ("options", "limit", "rows"),
    [
        ({}, ReadAllAvailable(), 7),
        ({}, ReadMaxRows(1), 2),
        ({}, ReadMaxRows(2), 2),
        ({}, ReadMaxRows(3), 3),
        ({}, ReadMaxRows(4), 3),
        ({}, ReadMaxRows(5), 5),
        ({}, ReadMaxRows(6), 6),
        ({}, ReadMaxRows(100), 7),
        ({}, ReadMaxBytes(1), 5),
        ({}, ReadMaxFiles(2), 6),
        ({"max_rows_per_batch": "1"}, ReadMinRows(5), 2),
        ({"max_bytes_per_batch": "1"}, ReadMaxRows(100), 5),
        ({"max_bytes_per_batch": "1"}, ReadAllAvailable(), 7),
    ],
)
def test_a_batch_takes_whole_transactions_and_at_least_one(
    spool_maker: SpoolMaker, options: dict[str, str], limit: ReadLimit, rows: int
) -> None:
    spool_maker.segment(orders(1, 2), orders(3), orders(4, 5))
    spool_maker.segment(orders(6))
    spool_maker.segment(orders(7))
    reader = stream(spool_maker, **options)
    start = reader.initialOffset()
    assert lsn_of(start) == START
    end = reader.latestOffset(start, limit)
    assert ids(reader, start, end) == list(range(1, rows + 1))


def test_batches_of_limited_rows_reach_the_end(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1), orders(2, 3, 4), orders(5), orders(6))
    spool_maker.segment(orders(7), orders(8))
    reader = stream(spool_maker)
    offset = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(offset, ReadMaxRows(2))) != offset:
        batches.append(ids(reader, offset, end))
        offset = end
    assert batches == [[1], [2, 3, 4], [5, 6], [7, 8]]


def test_the_default_limit_is_max_rows_per_batch(spool_maker: SpoolMaker) -> None:
    assert stream(spool_maker, max_rows_per_batch="7").getDefaultReadLimit() == ReadMaxRows(7)


def test_without_new_data_the_latest_offset_is_the_start(spool_maker: SpoolMaker) -> None:
    reader = stream(spool_maker)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert reader.partitions(start, start) == []


def test_latest_offset_waits_for_new_data(spool_maker: SpoolMaker) -> None:
    reader = PgoutputStreamReader(stream(spool_maker).options, SCHEMA, long_poll_s=60.0)
    reader.initialOffset()
    writing = threading.Timer(0.05, lambda: spool_maker.segment(orders(1)))
    writing.start()
    assert lsn_of(reader.latestOffset(FIRST, ReadAllAvailable())) == START + 0x100
    writing.join()


def test_the_registered_position_follows_the_start(spool_maker: SpoolMaker) -> None:
    def registered() -> Lsn:
        return find_record(spool_maker.path, "q").position

    first = spool_maker.segment(orders(1))
    spool_maker.segment(orders(2))
    reader = stream(spool_maker)
    assert lsn_of(reader.initialOffset()) == START
    assert registered() == START, "the position is registered before the first read"
    reader.latestOffset(FIRST, ReadMaxRows(1))
    assert registered() == START, "no batch is committed yet"
    reader.latestOffset(at(first), ReadMaxRows(1))
    assert registered() == first


def test_the_first_subscription_reads_everything_and_later_ones_new_data(
    spool_maker: SpoolMaker,
) -> None:
    now = spool_maker.segment(orders(1))
    assert lsn_of(stream(spool_maker, subscription="early").initialOffset()) == START
    assert lsn_of(stream(spool_maker, subscription="late").initialOffset()) == now


def test_offsets_have_one_spelling(spool_maker: SpoolMaker) -> None:
    """Spark compares them as text."""
    spool_maker.segment(orders(1))
    reader = stream(spool_maker)
    first = json.dumps(reader.initialOffset())
    assert re.fullmatch(r'\{"lsn": "0/1000", "subscription": "q/[0-9a-f]{16}"\}', first)
    second = json.dumps(reader.latestOffset(json.loads(first), ReadAllAvailable()))
    assert second == first.replace("0/1000", "0/1100")


def test_available_now_ends_at_the_position_of_the_start(spool_maker: SpoolMaker) -> None:
    first = spool_maker.segment(orders(1))
    reader = stream(spool_maker)
    reader.prepareForTriggerAvailableNow()
    spool_maker.segment(orders(2))
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert lsn_of(end) == first
    assert reader.latestOffset(end, ReadMaxRows(100)) == end


def test_an_end_before_the_start_fails(spool_maker: SpoolMaker) -> None:
    end = spool_maker.segment(orders(1))
    with pytest.raises(SpoolError, match="would end at 0/1000, before its start at 0/1100"):
        registered(spool_maker).partitions(at(end), FIRST)


def test_a_start_before_dropped_data_fails(spool_maker: SpoolMaker) -> None:
    dropped = spool_maker.segment(orders(1))
    end = spool_maker.segment(orders(2))
    spool_maker.writer.release(dropped)
    reader = registered(spool_maker)
    with pytest.raises(SpoolHole, match="the changes from 0/1000 to 0/1100, where it starts"):
        reader.latestOffset(FIRST, ReadAllAvailable())
    with pytest.raises(
        SpoolHole, match="the changes from 0/1000 to 0/1100, where it starts"
    ) as caught:
        reader.partitions(FIRST, at(end))
    assert caught.value.hint == "set another checkpointLocation, and the option starting_position"


def test_an_end_that_the_spool_never_had_fails(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    with pytest.raises(SpoolHole, match="before the end of the batch at 0/9000"):
        registered(spool_maker).partitions(FIRST, at(0x9000))


def test_a_foreign_offset_fails(spool_maker: SpoolMaker) -> None:
    with pytest.raises(SpoolError, match="the checkpoint has the offset"):
        registered(spool_maker).latestOffset({"index": "4"}, ReadAllAvailable())


def test_ranges_may_begin_and_end_inside_a_segment(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1), orders(2), orders(3))
    spool_maker.segment(orders(4), orders(5))
    reader = registered(spool_maker)
    assert ids(reader, at(START + 0x100), at(START + 0x400)) == [2, 3, 4]


def test_the_lag_behind_the_last_batch_is_reported(spool_maker: SpoolMaker) -> None:
    first = spool_maker.segment(orders(1))
    end = spool_maker.segment(orders(2))
    reader = registered(spool_maker)
    reader.latestOffset(FIRST, ReadMaxRows(1))
    facts = reader.reportLatestOffset()
    assert facts is not None
    committed_s = POSTGRES_EPOCH_US / 1e6 + spool_maker.xid  # see `transactions`
    assert float(facts.pop("lag_seconds")) == pytest.approx(time.time() - committed_s, abs=60)
    assert facts == {
        "lsn": str(end), "frontier": str(end), "lag_bytes": "256", "slot": "pgsluice"
    }  # fmt: skip
    spool_maker.writer.advance_frontier(Lsn(end + 0x50))
    reader.latestOffset(at(first), ReadAllAvailable())
    facts |= {"frontier": str(Lsn(end + 0x50)), "lag_bytes": "0", "lag_seconds": "0.0"}
    assert reader.reportLatestOffset() == facts, "there is no lag after the last commit"


def test_segments_without_changes_make_no_tasks(spool_maker: SpoolMaker) -> None:
    end = spool_maker.segment([])
    reader = registered(spool_maker)
    assert lsn_of(reader.latestOffset(FIRST, ReadAllAvailable())) == end
    assert reader.partitions(FIRST, at(end)) == []


def test_small_segments_share_a_task(
    spool_maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        spool_maker.segment(orders(number))
    infos = SpoolReader(spool_maker.path).segments(Lsn(START))
    assert infos[0].size_bytes * 6 < PARTITION_BYTES
    through = infos[-1].end
    assert len(plan(infos, Lsn(START), through)) == 1
    two = 2 * max(info.size_bytes for info in infos)
    monkeypatch.setattr("pgsluice.spark.source.reading.PARTITION_BYTES", two)
    partitions = plan(infos, Lsn(START), through)
    assert [p.through for p in partitions] == [infos[1].end, infos[3].end, infos[5].end]
    assert [p.after for p in partitions] == [START, infos[1].end, infos[3].end]


def test_a_query_cannot_use_a_subscription_of_a_configuration(spool_maker: SpoolMaker) -> None:
    configured(spool_maker)
    with pytest.raises(
        ConfigError, match="the name q is already used by a subscription of a pgsluice"
    ):
        stream(spool_maker).initialOffset()


def test_the_schema_comes_from_the_newest_definition_in_the_spool(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(orders(1))
    source = PgoutputDataSource({"spool": str(spool_maker.path), "table": "public.orders"})
    assert source.schema().startswith("`id` int, `note` string, `_change_type` STRING")
    prefixed = {"change_column_prefix": "$", **source.options}
    assert "`$change_type` STRING" in PgoutputDataSource(prefixed).schema()
    envelope = PgoutputDataSource({"spool": str(spool_maker.path)})
    assert envelope.schema().startswith(
        "`schema` STRING, `table` STRING, `key` VARIANT, `row` VARIANT, "
        "`prefix` STRING, `content` BINARY, `_change_type` STRING"
    )


def test_the_error_of_an_unknown_table_asks_for_a_dsn(spool_maker: SpoolMaker) -> None:
    source = PgoutputDataSource({"spool": str(spool_maker.path), "table": "public.nothing"})
    with pytest.raises(ConfigError, match="set the option dsn"):
        source.schema()


def test_a_spool_without_a_start_position_has_no_tables(tmp_path: Path) -> None:
    identity = SpoolIdentity(system_identifier="7", timeline=1, database="d", slot="s")
    Spool.create(tmp_path / "intent", identity)
    for folder in ("intent", "nothing"):
        source = PgoutputDataSource({"spool": str(tmp_path / folder), "table": "a.b"})
        with pytest.raises(ConfigError, match=r"has no changes of table a\.b"):
            source.schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option subscription"),
        (
            {"subscription": "q", "ending_lsn": "0/1"},
            "the option ending_lsn works with spark.read only",
        ),
        ({"subscription": "q", "starting_position": "later"}, "earliest, now, snapshot nor an LSN"),
        (
            {"subscription": "q", "table": "a.b", "exclude_tables": "a.c"},
            "the options table and exclude_tables exclude each other",
        ),
    ],
)
def test_options_that_a_stream_refuses(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    reader = PgoutputDataSource({"spool": str(tmp_path), **options}).streamReader(SCHEMA)
    with pytest.raises(ConfigError, match=message):
        reader.initialOffset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starting_lsn": "FF/0"}, "starting_lsn is FF/0, past the end of the spool at 0/1200"),
        ({"starting_lsn": "0/1000"}, "before the start of the spool at 0/1100"),
    ],
)
def test_a_range_that_the_spool_does_not_have(
    spool_maker: SpoolMaker, options: dict[str, str], message: str
) -> None:
    dropped = spool_maker.segment(orders(1))
    spool_maker.segment(orders(2))
    spool_maker.writer.release(dropped)
    source = PgoutputDataSource(
        {"spool": str(spool_maker.path), "table": "public.orders", **options}
    )
    with pytest.raises(ConfigError, match=message) as info:
        source.reader(SCHEMA).partitions()
    assert "remove the option starting_lsn" in (info.value.hint or "")


def test_the_parts_of_a_large_transaction_are_tasks_of_their_own(
    spool_maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool_maker.segment(orders(1))
    end = spool_maker.in_parts([orders(2, 3), orders(4), orders(5), orders(6)])
    spool_maker.segment(orders(7))
    reader = registered(spool_maker)
    (_, large, _) = reader.reader().segments(Lsn(START))
    monkeypatch.setattr("pgsluice.spark.source.reading.PARTITION_BYTES", large.size_bytes // 2)
    tasks = reader.partitions(FIRST, at(spool_maker.at))
    assert len(tasks) >= 4
    assert {task.through for task in tasks if task.parts is not None} == {end}
    shown = []
    for task in tasks:
        for batch in reader.read(task):
            shown += zip(*(batch.column(n).to_pylist() for n in ("id", "_ordinal")), strict=True)
    assert shown == [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 4), (7, 0)]


def test_tables_can_be_left_out(spool_maker: SpoolMaker, caplog: pytest.LogCaptureFixture) -> None:
    """A name that no table has may be a typo, and is said."""
    other = relation(OID + 1, "other", [("id", INT4)])
    spool_maker.segment([*orders(1), other, Insert(OID + 1, TupleData.of("2"))])
    options = {"spool": str(spool_maker.path)}
    for excluded, expected in (
        ("public.orders, public.othr", ["other"]),
        ("public.other", ["orders"]),
    ):
        source = PgoutputDataSource({**options, "exclude_tables": excluded})
        reader = source.reader(ENVELOPE)
        (task,) = reader.partitions()
        tables = [name for batch in reader.read(task) for name in batch.column("table").to_pylist()]
        assert tables == expected
    assert caplog.messages == [
        "option exclude_tables: no table is called public.othr; did you mean public.other?"
    ]


def test_columns_that_are_not_asked_for_are_not_decoded(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(
        [
            relation(OID, "t", [("id", INT4), ("broken", INT4), ("Note", TEXT)]),
            Insert(OID, TupleData.of("1", "not a number", "x")),
        ]
    )
    options = {"spool": str(spool_maker.path), "table": "public.t", "columns": '"Note", id'}
    source = PgoutputDataSource(options)
    assert source.schema().startswith("`id` int, `Note` string, `_change_type` ")
    schema = StructType().add("id", IntegerType()).add("Note", StringType())
    for field in SCHEMA.fields[2:]:
        schema.add(field)
    reader = source.reader(schema)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    shown = [(row["id"], row["Note"], row["_absent"]) for row in batch.to_pylist()]
    assert shown == [(1, "x", [])]
    with pytest.raises(
        ConfigError, match=r'column "note", which table public\.t does not have'
    ) as info:
        PgoutputDataSource({**options, "columns": "note"}).schema()
    assert info.value.hint == "did you mean Note?"


def test_a_given_schema_must_have_the_change_columns() -> None:
    source = PgoutputDataSource({"spool": "s", "table": "a.b"})
    with pytest.raises(ConfigError, match="does not end with the columns _change_type"):
        source.reader(StructType().add("id", IntegerType()))


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (OSError("stumbled"), 3),
        (SourceUnreachable("away"), 3),
        (SpoolError("unreadable"), 1),
        (SpoolHole("a hole"), 1),
        (ConfigError("wrong"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_transient_errors_are_retried(error: Exception, calls: int) -> None:
    seen: list[int] = []

    def call() -> str:
        seen.append(1)
        if len(seen) < 3:
            raise error
        return "done"

    if calls == 3:
        assert retry_transient(call, (0.0,) * 4) == "done"
    else:
        with pytest.raises(type(error)):
            retry_transient(call, (0.0,) * 4)
    assert len(seen) == calls


def test_sigterm_raises_system_exit(spool_maker: SpoolMaker) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stream(spool_maker).initialOffset()
    handler: Any = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        handler(signal.SIGTERM, None)
