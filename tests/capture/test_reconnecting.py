"""What capture does when the source changes under it."""

from __future__ import annotations

import json

import pytest
from tests.support.capturing import await_that, configure, insert, inserted, numbers, running
from tests.support.databases import Database

from pgsluice.capture import read_health, run_capture
from pgsluice.capture.facts import FactsSource
from pgsluice.errors import SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection
from pgsluice.spool import Spool, SpoolReader


@pytest.fixture
def db(database) -> Database:
    one = database()
    one.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return one


def take_slot(db: Database, other: ReplicationConnection) -> None:
    """Be quicker than capture, whose connection is ended."""
    options = PgoutputOptions(("pgsluice",), proto_version=1, streaming="off")
    other.start_replication(db.name, Lsn(0), options)


def test_a_slot_that_is_held_after_the_first_start_is_waited_for(db, tmp_path, monkeypatch):
    """A connection that broke unseen lives on at the server, longer than we know."""
    monkeypatch.setattr("pgsluice.capture.process.STALE_WALSENDER_TIMEOUT_S", 0.1)
    config = configure(db, tmp_path / "spool")
    # Capture cannot come back before the other one has the slot.
    monkeypatch.setattr("pgsluice.capture.process._BACKOFF_S", (1.0,))
    with running(config) as thread:
        await_that(lambda: SpoolReader.is_there(config.spool.path))
        db.execute(insert(1, 10))
        await_that(lambda: inserted(config) == numbers(1, 10))
        with ReplicationConnection.connect(db.dsn) as other:
            db.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                f" WHERE slot_name = '{db.name}'"
            )
            await_that(
                lambda: (
                    db.execute(
                        f"SELECT active FROM pg_replication_slots WHERE slot_name = '{db.name}'"
                    )
                    == [(False,)]
                )
            )
            take_slot(db, other)
            await_that(lambda: "active" in (read_health(config.spool.path).message or ""))
            refused_at = read_health(config.spool.path).written_at
            await_that(
                lambda: (
                    read_health(config.spool.path).written_at > refused_at or not thread.is_alive()
                )
            )
            assert thread.is_alive()
        db.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))


def test_other_publications_join_when_the_spool_is_past_their_making(db, tmp_path):
    db.execute("CREATE PUBLICATION one FOR TABLE t")
    config = configure(db, tmp_path / "spool")

    def publications(name):
        source = config.source.model_copy(update={"publications": (name,)})
        return config.model_copy(update={"source": source})

    run_capture(publications("one"), once=True)
    db.execute(insert(1, 5), "CREATE PUBLICATION two FOR TABLE t", insert(6, 10))
    run_capture(publications("two"), once=True)
    assert inserted(config) == numbers(1, 10)
    db.execute("DROP PUBLICATION one", insert(11, 15))
    run_capture(publications("two"), once=True)
    assert inserted(config) == numbers(1, 15)
    assert Spool.open(config.spool.path).identity.publications == ("two",)


def test_facts_that_an_r_brought_are_not_undone_by_older_ones(db):
    ((oid,),) = db.execute("SELECT 't'::regclass::oid::int8")
    facts = FactsSource(db.dsn, 10)
    try:
        assert facts.on_relation(oid) is not None
        assert facts.on_relation(oid) is None
        known = facts.known()[oid]
        db.execute("ALTER TABLE t ADD w int")
        assert facts.on_relation(oid) is not None
        # The watcher asked before the ALTER TABLE, and comes back after the R.
        older = json.dumps({**json.loads(known), "name": "looked up between"})
        facts.offer(oid, known, older)
        assert facts.take_changed() == []
        # What it finds when nothing came between stands.
        newer = facts.known()[oid].replace('"w"', '"x"')
        facts.offer(oid, facts.known()[oid], newer)
        facts.offer(oid, facts.known()[oid], newer)
        (message,) = facts.take_changed()
        assert message.endswith(newer.encode())
    finally:
        facts.close()


def test_facts_cannot_be_asked_of_a_server_that_is_away():
    facts = FactsSource("host=/nowhere", 1)
    with pytest.raises(SourceUnreachable):
        facts.on_relation(1)
