"""Copies of partitioned tables on PostgreSQL 14 wait for a new connection, with limits."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.local_spark import use_local_spark
from tests.support.partition_cases import publish_via_root
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.capture.health import read_health
from pgsluice.spool import find_record
from pgsluice.subscription.base import received
from pgsluice.subscription.base.waits import Waits
from pgsluice.subscription.copies import snapshots

ATTACH = (
    "CREATE TABLE {name} (LIKE root INCLUDING ALL)",
    "INSERT INTO {name} SELECT i, '{name}' FROM generate_series({first}, {first} + 9) i",
    "ALTER TABLE root ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({first} + 100)",
)


def attach(shop: Database, number: int) -> None:
    """A partition that comes with rows, which follows the others."""
    shop.execute(*(sql.format(name=f"late_{number}", first=100 * number) for sql in ATTACH))


@pytest.fixture
def one(
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    use_local_spark(monkeypatch)
    one = pipeline(shop := database(servers(14)))
    shop.execute(
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE early PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "INSERT INTO root SELECT i, 'early' FROM generate_series(1, 50) i",
    )
    publish_via_root(shop, ["root"])
    return one


@contextmanager
def copied(one: Pipeline) -> Iterator[None]:
    """A run that has copied the table; in the end it is applied, and was not copied again."""
    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: any(table.is_active for table in one.record().tables.values()))
        yield
        one.wait_until(lambda: one.table("root").is_active, why="the partitions are loaded")
        one.database.execute("UPDATE root SET v = 'later' WHERE id % 10 = 1")
        one.wait_applied()
    one.assert_equal("root")
    assert one.table("root").copy_number == 1


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def says(caplog: pytest.LogCaptureFixture, words: str) -> Callable[[], bool]:
    return lambda: any(words in message for message in caplog.messages)


@pytest.mark.parametrize("is_for_ever", [False, True], ids=["once", "all the time"])
def test_partitions_that_come_during_the_snapshot(
    is_for_ever: bool,
    one: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = "publications, changed during each\n  → pgsluice retries the copy"
    has_said, number, take = says(caplog, words), 1, snapshots.new_snapshot

    def disturbed(*arguments: Any) -> Any:
        nonlocal number
        if number == 1 or (is_for_ever and not has_said()):
            number += 1
            attach(one.database, number)
        return take(*arguments)

    with copied(one):
        monkeypatch.setattr(snapshots, "new_snapshot", disturbed)
        attach(one.database, 1)
        one.wait_until(lambda: one.table("root").partitions.load != (), why="the look found it")
        if is_for_ever:
            one.wait_until(has_said, why="it gives up for now")
            assert one.table("root").partitions.load, "the table stays as it is"


def test_capture_that_does_not_receive(one: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    one.waits = Waits(capture_s=1.0)
    words = "has not received the changes that were committed before a copy, within 1 s"
    with copied(one):
        one.wait_until(lambda: read_health(one.spool) is not None, why="capture says what it does")
        health = read_health(one.spool)
        assert health is not None
        with stopped(health.pid):
            attach(one.database, 1)
            one.wait_until(says(caplog, words), why="it gives up for now")
            assert one.table("root").partitions.load, "the table stays as it is"


def test_a_connection_that_does_not_end(
    one: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one.waits = Waits(capture_s=1.0)
    come_to, pids = received.ReceivedLive.come_to, list[int]()

    def then_stop(self: received.ReceivedLive, *arguments: Any) -> bool:
        has_come = come_to(self, *arguments)
        if not pids:
            ((pid,),) = one.database.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE NOT temporary"
                " AND database = current_database()"
            )
            pids.append(pid)
            os.kill(pid, signal.SIGSTOP)
        return has_come

    monkeypatch.setattr(received.ReceivedLive, "come_to", then_stop)
    with copied(one):
        attach(one.database, 1)
        try:
            one.wait_until(lambda: bool(pids), why="the connection is to end")
            words = f"asked the server's process {pids[0]}, which sends the stream, to end"
            one.wait_until(says(caplog, words), why="it gives up for now")
            assert one.table("root").partitions.load, "the table stays as it is"
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def subscribe(one: Pipeline, *publications: str) -> None:
    """Request the server's own publications."""
    text, own = one.path.read_text(), f'publications = ["{one.database.name}"]'
    assert own in text
    one.path.write_text(text.replace(own, f"publications = {json.dumps(publications)}"))


DROPPED_AND_MADE = "BEGIN; DROP PUBLICATION more; CREATE PUBLICATION more FOR TABLE {t}; COMMIT"
ADDED = "ALTER PUBLICATION more ADD TABLE {t}"
_WAITING = "SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()"


@pytest.mark.parametrize(
    ("change", "table", "written"), [(DROPPED_AND_MADE, "t", "a"), (ADDED, "added", "added")]
)
def test_publications_that_change_beside_open_transactions(
    change: str,
    table: str,
    written: str,
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server itself, before the minor releases of May 2025, then decides by the catalog of
    the open transaction's start, and sends no later changes of the table."""
    use_local_spark(monkeypatch)
    shop = database(servers(12))
    tables = ("a", "t", "added")
    shop.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables),
        "CREATE PUBLICATION first FOR TABLE a",
        "CREATE PUBLICATION more FOR TABLE t",
    )
    one = pipeline(shop)
    subscribe(one, "first", "more")

    def is_copied() -> bool:
        found = [each for each in one.record().tables.values() if each.name == table]
        return bool(found) and found[0].is_active and found[0].copy_number > before

    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: sum(each.is_active for each in one.record().tables.values()) == 2)
        before = 1 if table == "t" else 0
        shop.execute("INSERT INTO t VALUES (1)")
        one.wait_applied()
        with shop.connect() as writer:
            writer.execute("BEGIN")
            writer.execute(f"INSERT INTO {written} VALUES (2)".encode())
            shop.execute(change.format(t=table))
            writer.execute("COMMIT")
        one.wait_until(is_copied, why="the look found it")
        shop.execute(f"INSERT INTO {table} VALUES (3)")
        one.wait_applied()
    one.assert_equal("a", table)


@pytest.fixture
def uncopied(
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    """On 12, with a table that has no copy, and another that is not published yet."""
    use_local_spark(monkeypatch)
    shop = database(servers(12))
    shop.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "added")),
        "CREATE PUBLICATION more FOR TABLE a",
    )
    one = pipeline(shop, extra="copy_data = false")
    subscribe(one, "more")
    return one


def is_known(one: Pipeline) -> bool:
    return any(table.name == "added" for table in one.record().tables.values())


def ids(one: Pipeline) -> list[int]:
    """What the target of the added table has."""
    if not DeltaTable.is_deltatable(one.target("added")):
        return []
    return one.delta("added").to_pyarrow_table()["id"].to_pylist()


def test_a_table_that_is_not_copied_and_an_open_transaction_that_wrote_to_it(
    uncopied: Pipeline,
) -> None:
    """Changes come as soon as such transactions have ended and capture has connected again."""
    one, shop, rows = uncopied, uncopied.database, iter(range(10, 10_000))

    def come() -> bool:
        shop.execute(f"INSERT INTO added VALUES ({next(rows)})")
        return bool(ids(one))

    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: any(table.is_active for table in one.record().tables.values()))
        with shop.connect() as writer:
            writer.execute("BEGIN; INSERT INTO added VALUES (2)")
            shop.execute(ADDED.format(t="added"))
            one.wait_until(lambda: is_known(one), why="the look found it")
            writer.execute("COMMIT")
        one.wait_until(come, why="changes come")
        last = shop.execute("INSERT INTO added VALUES (10000) RETURNING id")[0][0]
        one.wait_applied()
    assert last in ids(one)


def test_with_once_such_a_table_waits_for_the_transaction(uncopied: Pipeline) -> None:
    one, shop = uncopied, uncopied.database
    one.once()
    with shop.connect() as writer:
        writer.execute("BEGIN; INSERT INTO added VALUES (2)")
        shop.execute(ADDED.format(t="added"))
        with beside(lambda _: one.once()) as run:
            await_that(lambda: not run.is_alive() or bool(shop.execute(_WAITING)))
            writer.execute("COMMIT")
    shop.execute("INSERT INTO added VALUES (3)")
    one.once()
    assert 3 in ids(one)


def test_a_publication_that_changes_there_and_back_beside_an_open_transaction(
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The table is equal then, and is not copied; the server goes on with the actions between."""
    use_local_spark(monkeypatch)
    caplog.set_level(logging.INFO)
    shop = database(servers(12))
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'copied')",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    one = pipeline(shop)
    subscribe(one, "p")
    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: any(table.is_active for table in one.record().tables.values()))
        with shop.connect() as writer:
            shop.execute("ALTER PUBLICATION p SET (publish = 'insert')")
            writer.execute("BEGIN; INSERT INTO t VALUES (2, 'inserted')")
            shop.execute("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
            writer.execute("COMMIT")
        one.wait_until(says(caplog, "publication that was altered: it is verified"))
        one.wait_until(lambda: not one.table("t").pending.verification, why="it is verified")
        shop.execute("UPDATE t SET v = 'updated' WHERE id = 1", "DELETE FROM t WHERE id = 2")
        one.wait_applied()
    one.assert_equal("t")


def test_a_new_partition_to_which_an_open_transaction_has_written(
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It seems to be empty. pgsluice's publication lists it, because 12 has no other way, and the
    server goes on with the time before that."""
    use_local_spark(monkeypatch)
    shop = database(servers(12))
    shop.execute(
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE early PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "INSERT INTO root VALUES (1, 'early')",
    )
    one = pipeline(shop)
    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: any(table.is_active for table in one.record().tables.values()))
        with shop.connect() as writer:
            shop.execute("CREATE TABLE late PARTITION OF root FOR VALUES FROM (100) TO (200)")
            writer.execute("BEGIN; INSERT INTO root VALUES (101, 'open')")
            # Capture does the same, but perhaps behind a look, which then finds a gap.
            shop.execute(f"ALTER PUBLICATION {shop.name} ADD TABLE late")
            late = shop.execute("SELECT 'late'::regclass::oid::int")[0][0]
            one.wait_until(lambda: f'"{late}"' in one.table("root").source.fingerprint, why="look")
            writer.execute("COMMIT")
        shop.execute("INSERT INTO root VALUES (102, 'later')")
        one.wait_until(lambda: one.table("root").is_active)
        one.wait_applied()
        shop.execute("UPDATE root SET v = 'updated'")
        one.wait_applied()
    one.assert_equal("root")
