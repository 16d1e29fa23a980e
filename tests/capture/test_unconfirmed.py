"""Commits that wait for a synchronous standby: they are in the stream, and in no snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from tests.support.capturing import configure, running
from tests.support.databases import Database
from tests.support.unconfirmed import unconfirmed
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import read_health
from pgsluice.catalog.visibility import is_named, sees_transaction
from pgsluice.columnar import decode_segment
from pgsluice.config import Config
from pgsluice.lsn import Lsn
from pgsluice.snapshots.snapshot import import_snapshot, temporary_snapshot
from pgsluice.spool import SpoolReader

LARGE = "INSERT INTO filler SELECT repeat('x', 500) FROM generate_series(1, 200)"
TRANSACTIONS = (
    "BEGIN; ALTER TABLE plain ADD c int; INSERT INTO plain VALUES (1, 1); COMMIT",
    f"BEGIN; {LARGE}; ALTER TABLE streamed ADD c int; INSERT INTO streamed VALUES (1, 1); COMMIT",
)


@pytest.fixture
def db(database) -> Database:
    db = database()
    db.execute(
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE streamed (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE filler (v text)",
    )
    if db.server.programs.major >= 13:  # those from 14 on send large transactions in streams
        db.execute(f"ALTER DATABASE \"{db.name}\" SET logical_decoding_work_mem = '64kB'")
    return db


@contextmanager
def capturing(db: Database, config: Config) -> Iterator[None]:
    """Capture, once it has received a change."""
    with running(config):
        await_that(lambda: SpoolReader.is_there(config.spool.path))
        db.execute("INSERT INTO other VALUES (100)")
        await_that(lambda: "other" in received(config))
        yield


def is_held(config: Config) -> bool:
    health = read_health(config.spool.path)
    return health is not None and "waits for a synchronous standby" in (health.message or "")


def received(config: Config) -> dict[str, tuple[str, ...] | None]:
    """Tables with changes -> the columns of the facts by which the last ones are decoded; None:
    the facts are not known."""
    reader = SpoolReader(config.spool.path)
    columns: dict[str, tuple[str, ...] | None] = {}
    for info in reader.segments(reader.start()):
        for view in reader.views(info):
            for run in decode_segment(view):
                facts = run.facts
                columns[run.relation.name] = facts and tuple(each.name for each in facts.columns)
    return columns


def test_facts_of_a_table_are_not_older_than_its_changes(db, tmp_path):
    config = configure(db, tmp_path / "spool", segment_ms=10)
    with capturing(db, config):
        with unconfirmed(db, [partial(db.execute, text) for text in TRANSACTIONS]):
            await_that(lambda: is_held(config))
            assert received(config).keys() == {"other"}
        await_that(lambda: received(config).get("plain") == ("id", "c"))
        await_that(lambda: received(config).get("streamed") == ("id", "c"))
        await_that(lambda: not is_held(config))


def test_capture_can_be_stopped_while_it_waits_for_the_catalog(db, tmp_path):
    config = configure(db, tmp_path / "spool", segment_ms=10)
    with capturing(db, config):
        pass
    with unconfirmed(db, [partial(db.execute, TRANSACTIONS[0])]), running(config):
        await_that(lambda: is_held(config))
    assert not is_held(config)
    assert received(config).keys() == {"other"}
    with running(config):
        await_that(lambda: received(config).get("plain") == ("id", "c"))


def test_a_commit_that_waits_for_capture_itself_is_not_held(db, tmp_path):
    """The server takes capture's connection for a standby. Facts that do not fit are unknown."""
    config = configure(db, tmp_path / "spool", segment_ms=10)
    with capturing(db, config):
        with unconfirmed(db, [partial(db.execute, text) for text in TRANSACTIONS]):
            db.execute(
                "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"
            )
            await_that(lambda: not waiting(db))
        known = {"other": ("id",), "filler": ("v",)}
        assert received(config) == {**known, "plain": None, "streamed": None}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", False),
        ("*", True),
        ("a, b", False),
        ("FIRST 2 (a, *)", True),
        ('any 1 (a, "Pgsluice capture")', True),
        ("2 (pgsluice, capture)", False),
        ('"pgsluice ""capture"', False),
    ],
)
def test_what_the_server_takes_for_a_standby(setting, expected):
    assert is_named(setting, "pgsluice capture") is expected


def test_changes_of_known_tables_go_on(db, tmp_path):
    """They need nothing of the catalog."""
    config = configure(db, tmp_path / "spool", segment_ms=10)
    with capturing(db, config):
        end = SpoolReader(config.spool.path).position()
        with unconfirmed(db, [partial(db.execute, "INSERT INTO other VALUES (2)")]):
            await_that(lambda: SpoolReader(config.spool.path).position() > end)


def test_a_copy_has_what_was_committed_before_its_position(db):
    """The slot is made when all transactions have ended that were open before. One that came later
    may still wait for the standby: the slot's snapshot sees it, no other does."""
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor())
        stack.enter_context(unconfirmed(db, []))
        (earlier,) = waiting(db)
        made = threads.submit(stack.enter_context, temporary_snapshot(db.dsn, HANGS_S))
        await_that(lambda: blockers_of_slot(db) == {earlier})
        threads.submit(db.execute, "INSERT INTO other VALUES (1)")
        await_that(lambda: len(waiting(db)) == 2)
        (second,) = waiting(db) - {earlier}
        db.execute(f"SELECT pg_cancel_backend({earlier})")
        await_that(lambda: blockers_of_slot(db) == {second})
        threads.submit(db.execute, "INSERT INTO other VALUES (2)")
        await_that(lambda: len(waiting(db)) == 2)
        ((end,),) = db.execute("SELECT pg_current_wal_insert_lsn()")
        db.execute(f"SELECT pg_cancel_backend({second})")
        snapshot = made.result(HANGS_S)
        assert snapshot.position >= Lsn.parse(end)
        assert db.execute("SELECT id FROM other") == [(1,)]
        with db.connect() as connection:
            import_snapshot(connection, snapshot)
            assert connection.execute("SELECT id FROM other").fetchall() == [(1,), (2,)]


def waiting(db: Database) -> set[int]:
    """The sessions whose commits wait for the standby."""
    return pids(db, "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


def blockers_of_slot(db: Database) -> set[int]:
    """The sessions that the creation of a slot waits for."""
    return pids(
        db,
        "SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity"
        " WHERE wait_event = 'transactionid'",
    )


def pids(db: Database, query: str) -> set[int]:
    return {pid for (pid,) in db.execute(query)}


def test_a_transaction_is_seen_when_its_commit_has_ended(db):
    with db.connect() as connection, db.connect() as other:
        other.execute("BEGIN")
        ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        assert not sees_transaction(connection, xid)
        assert not sees_transaction(connection, xid + 1000)
        assert sees_transaction(connection, xid - 1)
        other.execute("COMMIT")
        assert sees_transaction(connection, xid)
        # IDs of 32 bits go round.
        assert sees_transaction(connection, 2**32 - 5)
        assert not sees_transaction(connection, (xid + 2**31 - 10) % 2**32)
