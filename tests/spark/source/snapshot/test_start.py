"""A stream that begins with the rows of its table, driven as Spark drives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.source.snapshot.planned_stream import Offset, Stream
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.forked_capture import ForkedCapture
from tests.support.spools import SCHEMA
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.errors import ConfigError, PgsluiceError, SpoolError
from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.streaming.stream import PgoutputStreamReader
from pgsluice.spool.snapshot_files import SnapshotFiles


@pytest.fixture
def shop(database: MakeDatabase, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 32768)
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders SELECT i, 'before' FROM generate_series(1, 3000) i",
    )
    return shop


@pytest.fixture
def stream(shop: Database, tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(shop, tmp_path / "spool")
    yield stream
    stream.reader.stop()


def write(shop: Database, name: str, id_: int) -> None:
    """An insert, an update and a delete."""
    shop.execute(
        f"INSERT INTO orders VALUES ({id_}, '{name}')",
        f"UPDATE orders SET note = '{name}' WHERE id = {id_ - 3000}",
        f"DELETE FROM orders WHERE id = {id_ - 2000}",
    )


def follow(stream: Stream, shop: Database) -> None:
    """Read changes until the stream equals the table."""
    while stream.table() != dict(shop.execute("SELECT id, note FROM orders")):
        stream.batch()


def files(stream: Stream) -> list[Path]:
    folder = Path(stream.options["spool"]) / "subscriptions" / "q" / "snapshot"
    return sorted(folder.glob("*.arrow"))


def test_rows_come_once_whenever_the_planning_process_is_killed(
    shop: Database, stream: Stream
) -> None:
    write(shop, "registered", 3001)
    staging = stream.plan()
    assert staging["snapshot"] == "staging 1"
    assert stream.read(staging, most_tasks=1) == [], "only some tasks have run"
    staged = files(stream)
    assert staged
    stream.restart()
    write(shop, "again", 3002)
    stream.commit(staging)
    assert not set(staged) & set(files(stream)), "it has begun again"
    write(shop, "staged", 3003)
    first = stream.batch(ReadMaxRows(1))
    assert first["snapshot"] == "rows 1"
    assert 0 < len(stream.rows) < 1000
    end = stream.plan(ReadMaxRows(1))
    lost = stream.read(end)
    stream.restart()
    assert stream.read(end) == lost, "a batch that is repeated has the same rows"
    stream.commit(end)
    while stream.offsets[-1]["snapshot"] != "read":
        stream.batch(ReadMaxRows(500))
    write(shop, "later", 3004)
    follow(stream, shop)
    stream.plan()  # Spark tells with the next batch which one it has committed
    assert not files(stream), "the rows are deleted when they are delivered"
    versions = {row["_commit_version"] for row in stream.rows if row["_xid"] is None}
    assert len(versions) == 1
    shop.await_no_temporary_slot()


def test_a_snapshot_that_is_lost_is_taken_again(shop: Database, stream: Stream) -> None:
    end = stream.plan()
    tasks = stream.reader.partitions(stream.offsets[-1], end)
    sessions = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE application_name = 'pgsluice snapshot of a stream' AND datname = current_database()"
    )
    shop.execute(sessions.replace("pid", "pg_terminate_backend(pid)", 1))
    await_that(lambda: not shop.execute(sessions))  # until then the snapshot can be imported
    assert [batch for task in tasks for batch in stream.reader.read(task)] == []
    stream.offsets.append(end)
    write(shop, "lost", 3001)
    assert stream.batch()["snapshot"] == "staging 2"
    assert stream.batch()["snapshot"] == "read"
    follow(stream, shop)


def test_files_that_are_damaged_or_do_not_fit_are_refused(shop: Database, stream: Stream) -> None:
    stream.batch()
    end = stream.plan()
    assert end["snapshot"] == "read"
    file = files(stream)[0]
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:200] + b"x" + whole[201:], b""):
        file.write_bytes(damaged)
        with pytest.raises(SpoolError, match=r"is damaged|cannot|Invalid"):
            stream.read(end)
    file.write_bytes(whole)
    stream.commit(end)
    assert len(stream.rows) == 3000


def test_what_a_stream_cannot_begin_with_is_refused(
    shop: Database, stream: Stream, tmp_path: Path
) -> None:
    shop.execute(
        "CREATE VIEW v AS SELECT 1 AS id, 'x' AS note",
        "CREATE UNLOGGED TABLE unlogged (id int, note text)",
    )
    given = stream.options
    for table, words in (
        ("public.v", "public.v is a view"),
        ("public.unlogged", "table public.unlogged is not in the publications"),
        ("public.nothing", "the server has no table public.nothing"),
    ):
        other = Stream(shop, tmp_path / "spool", table=table, subscription=table[7:])
        with pytest.raises(ConfigError, match=words):
            other.plan() and other.read(other.plan())
        other.reader.stop()
    for missing in ("dsn", "table"):
        options = {name: value for name, value in given.items() if name != missing}
        refused = PgoutputDataSource(options).streamReader(SCHEMA)
        with pytest.raises(PgsluiceError, match=f"needs the option {missing}"):
            refused.initialOffset()


class Starts:
    """A query with availableNow on Spark 4.0 and 4.1: each start is one process and one batch.

    Attributes:
        checkpoint: the ends of the batches that have begun.
        is_committed: whether the last one is committed.
    """

    def __init__(self, shop: Database, spool: Path) -> None:
        self.stream = Stream(shop, spool)
        self.stream.reader.stop()
        self.options = self.stream.reader.options
        self.schema: StructType = SCHEMA
        self.checkpoint: list[Offset] = []
        self.is_committed = True

    def start(self, *, tasks: int = 100, is_killed: bool = False) -> list[dict[str, Any]]:
        """The new rows of one start.

        Args:
            tasks: how many of a batch's tasks run; others are lost.
            is_killed: the process ends before the batch is committed.
        """
        reader = PgoutputStreamReader(self.options, self.schema, gives_start=False)
        try:
            end = reader.latestOffset()
            if not self.checkpoint:
                self.checkpoint.append(reader.initialOffset())
            rows = []
            if not self.is_committed:  # Spark repeats the batch first
                rows += self._batch(reader, *self.checkpoint[-2:])
                self.is_committed = True
            if end != self.checkpoint[-1]:
                self.checkpoint.append(end)
                self.is_committed = not is_killed
                rows += self._batch(reader, *self.checkpoint[-2:], tasks=tasks)
                if not is_killed:
                    reader.commit(end)
            return rows
        finally:
            reader.stop()

    def _batch(
        self, reader: PgoutputStreamReader, start: Offset, end: Offset, *, tasks: int = 100
    ) -> list[dict[str, Any]]:
        return [
            row
            for task in list(reader.partitions(start, end))[:tasks]
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def starts(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    return Starts(shop, tmp_path / "spool")


def test_on_older_sparks_the_second_start_has_the_rows_that_the_first_one_wrote(
    shop: Database, starts: Starts
) -> None:
    assert starts.start() == []
    write(shop, "between", 3001)
    starts.stream.rows = starts.start()
    assert starts.stream.table() == dict.fromkeys(range(1, 3001), "before")
    starts.stream.rows += starts.start()
    assert starts.stream.table() == dict(shop.execute("SELECT id, note FROM orders"))
    assert not files(starts.stream)


@pytest.mark.parametrize("tasks", [1, 100])
def test_on_older_sparks_a_killed_start_is_completed_by_following_ones(
    shop: Database, starts: Starts, tasks: int
) -> None:
    assert starts.start(tasks=tasks, is_killed=True) == []
    starts.stream.rows = [*starts.start(), *starts.start()]
    assert starts.stream.table() == dict.fromkeys(range(1, 3001), "before")
    positions = {row["_commit_version"] for row in starts.stream.rows}
    assert len(positions) == 1


def test_rows_of_an_earlier_start_are_read_again_after_a_promotion_or_for_other_columns(
    starts: Starts,
) -> None:
    assert starts.start() == []
    kept = SnapshotFiles(starts.options.spool, "q")
    registration = starts.checkpoint[-1]["subscription"]
    attempt = kept.attempt(registration)
    assert attempt is not None
    kept.note(replace(attempt, timeline=attempt.timeline + 1), registration)
    assert starts.start() == []
    assert kept.attempt(registration) != attempt
    starts.schema = StructType([field for field in SCHEMA.fields if field.name != "note"])
    assert starts.start() == []
    rows = starts.start()
    assert len(rows) == 3000
    assert "note" not in rows[0]


def test_the_table_of_a_second_stream_beside_an_open_transaction_that_wrote_to_it(
    database: MakeDatabase, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself, before the minor releases of May 2025, would send no change of it."""
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop = database(servers(12))
    shop.execute(
        "CREATE TABLE other (id int PRIMARY KEY, note text)",
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders SELECT i, 'before' FROM generate_series(1, 10) i",
    )
    spool = tmp_path / "spool"
    first = Stream(shop, spool, subscription="first", table="public.other")
    seconds: list[Stream] = []
    try:
        with shop.connect() as writer:
            writer.execute("BEGIN; INSERT INTO orders VALUES (11, 'open')")

            def begin() -> None:
                seconds.append(Stream(shop, spool))

            with beside(lambda _: begin()):
                await_that(
                    lambda: bool(shop.execute(_IS_PUBLISHED)),
                    "the second stream's table is published",
                )
                writer.execute("COMMIT")
        (second,) = seconds
        for _ in range(2):
            second.batch()
        shop.execute(
            "INSERT INTO orders VALUES (12, 'later')", "UPDATE orders SET note = 'x' WHERE id = 1"
        )
        await_that(lambda: _follows(second, shop), "the changes come")
    finally:
        for stream in (first, *seconds):
            stream.reader.stop()


_IS_PUBLISHED = "SELECT 1 FROM pg_publication_rel WHERE prrelid = 'orders'::regclass"


def _follows(stream: Stream, shop: Database) -> bool:
    stream.batch()
    return stream.table() == dict(shop.execute("SELECT id, note FROM orders"))
