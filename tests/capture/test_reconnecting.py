"""What capture does when the source changes under it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from tests.support.capturing import configure, insert, inserted, numbers, phase, running
from tests.support.databases import Database
from tests.support.scripted_server import NoFacts, Played
from tests.support.threads import beside
from tests.support.transactions import new_spool
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import read_health, run_capture
from pgsluice.capture.receiving.facts import FactsSource
from pgsluice.capture.receiving.receiver import Receiver, ReceiverOptions
from pgsluice.capture.receiving.store import Store
from pgsluice.capture.streaming import SlotStream
from pgsluice.config import Config
from pgsluice.errors import PublicationMissing, SourceUnreachable
from pgsluice.events import CaptureState
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection
from pgsluice.spool import Spool, SpoolReader, SpoolWriter
from pgsluice.wire import Keepalive, StandbyStatusUpdate


@pytest.fixture
def db(database) -> Database:
    one = database()
    one.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return one


def take_slot(db: Database, other: ReplicationConnection) -> None:
    """Have the slot, which capture does not have now."""
    options = PgoutputOptions(("pgsluice",), proto_version=1, streaming="off")
    other.start_replication(db.name, Lsn(0), options)


def test_a_slot_that_is_held_after_the_first_start_is_waited_for(db, tmp_path, monkeypatch):
    """A connection that broke unseen lives on at the server, longer than we know."""
    config = configure(db, tmp_path / "spool")
    run, may_connect = SlotStream.run, threading.Event()
    may_connect.set()

    def running_when_it_may(stream: SlotStream) -> None:
        assert may_connect.wait(HANGS_S)
        run(stream)

    monkeypatch.setattr(SlotStream, "run", running_when_it_may)
    with running(config, stale_walsender_s=0.1) as thread:
        await_that(lambda: SpoolReader.is_there(config.spool.path))
        db.execute(insert(1, 10))
        await_that(lambda: inserted(config) == numbers(1, 10))
        with ReplicationConnection.connect(db.dsn) as other:
            may_connect.clear()
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
            may_connect.set()
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


class Silent(Played):
    """A server that says nothing, or only what it is asked for.

    Args:
        replies: how often it answers.
        wait_s: how long each wait for it lasts.
        ended: set when it has been asked once more.
    """

    def __init__(self, replies: int, wait_s: float, ended: threading.Event) -> None:
        super().__init__([], threading.Event())
        self._replies = replies
        self._wait_s = wait_s
        self._ended_by_us = ended
        self.asked = 0
        self.now = 0.0

    def wait(self, _: float) -> None:
        self.now += self._wait_s

    def send_status(self, status: StandbyStatusUpdate) -> None:
        super().send_status(status)
        if not status.reply_requested:
            return
        self.asked += 1
        if self.asked <= self._replies:
            frame = Keepalive(Lsn(10), 0, reply_requested=False).encode()
            self._frames = iter([frame])
        elif self._replies:
            self._ended_by_us.set()


@pytest.mark.parametrize("wait_s", [0.01, 60.0], ids=["waits", "stands still"])
def test_a_silent_server_is_asked_for_a_reply_before_it_is_given_up(tmp_path, monkeypatch, wait_s):
    """Also by a capture that was stopped in a wait, or got no CPU, for longer than the limit."""
    options = ReceiverOptions(2048, 3600, silence_s=0.1)
    for replies in (0, 5):
        stop = threading.Event()
        server = Silent(replies, wait_s, stop)
        clock = SimpleNamespace(monotonic=lambda server=server: server.now, time_ns=time.time_ns)
        monkeypatch.setattr("pgsluice.capture.receiving.receiver.time", clock)
        with (
            SpoolWriter(new_spool(tmp_path / f"spool{replies}", Lsn(10))) as writer,
            Store(writer, None) as store,
            nullcontext() if replies else pytest.raises(SourceUnreachable, match=r"for 0\.1 s"),
        ):
            Receiver(server, store, NoFacts(), options, stop).run()
        # At the beginning, and once for each half of the time.
        assert server.asked == max(2, replies + 1)


def test_a_connection_that_broke_unseen_is_replaced(db, tmp_path):
    config = configure(db, tmp_path / "spool")
    source = config.source.model_copy(update={"silence_timeout_s": 1.0})
    config = config.model_copy(update={"source": source})
    seen: list[str] = []

    def report(event: object) -> None:
        if isinstance(event, CaptureState):
            seen.append(event.message or "")

    with beside(lambda stop: run_capture(config, report=report, stop=stop)):
        await_that(lambda: phase(config) == "streaming")
        db.execute(insert(2, 2))
        await_that(lambda: inserted(config) == numbers(2, 2))
        walsenders: list[int] = []
        while not walsenders:  # none while capture connects again
            walsenders = [
                pid
                for (pid,) in db.execute(
                    "SELECT active_pid FROM pg_replication_slots"
                    f" WHERE slot_name = '{db.name}' AND active_pid IS NOT NULL"
                )
            ]
        os.kill(walsenders[0], signal.SIGSTOP)
        try:
            db.execute(insert(3, 3))
            await_that(lambda: any("nothing for 1 s" in message for message in seen))
        finally:
            os.kill(walsenders[0], signal.SIGCONT)
        await_that(lambda: inserted(config) == numbers(2, 3))


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


def test_a_publication_joins_behind_its_commit_although_that_is_not_flushed_yet(
    database, pg16, tmp_path
):
    """Before 18, the server cannot decode changes from before it, and would say so for ever."""
    db = database(pg16)
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION one FOR TABLE t")
    config = configure(db, tmp_path / "spool")

    def publications(*names):
        source = config.source.model_copy(update={"publications": names})
        return config.model_copy(update={"source": source})

    run_capture(publications("one"), once=True)
    ((writer,),) = db.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(writer, signal.SIGSTOP)
    try:
        asynchronously = "SET synchronous_commit = off"
        db.execute(asynchronously, insert(1, 5), "CREATE PUBLICATION two FOR TABLE t")
        with running(publications("one", "two"), pauses_s=(0.1,)):
            await_that(lambda: phase(config) == "streaming")
            os.kill(writer, signal.SIGCONT)
            db.execute(insert(6, 10))
            await_that(lambda: inserted(config) == numbers(1, 10))
            joined = ("one", "two")
            await_that(lambda: Spool.open(config.spool.path).identity.publications == joined)
    finally:
        os.kill(writer, signal.SIGCONT)


def from_the_users_publication(db: Database, path) -> Config:
    """A spool that was begun with a publication of the user's, called shop."""
    db.execute("CREATE PUBLICATION shop FOR TABLE t", "CREATE TABLE unpublished (id int)")
    config = configure(db, path)
    source = config.source.model_copy(update={"publications": ("shop",), "catalog_poll_s": 0.1})
    config = config.model_copy(update={"source": source})
    run_capture(config, once=True)
    return config


def publications(db: Database) -> list[str]:
    return [name for (name,) in db.execute("SELECT pubname FROM pg_publication ORDER BY 1")]


def says(config: Config, text: str) -> bool:
    health = read_health(config.spool.path)
    return health is not None and text in (health.message or "")


def test_a_users_publication_that_is_missing_is_never_made_by_a_live_capture(db, tmp_path):
    config = from_the_users_publication(db, tmp_path / "spool")
    with running(config):
        await_that(lambda: phase(config) == "streaming")
        db.execute("ALTER PUBLICATION shop RENAME TO moved", "CREATE TABLE more (id int)")
        await_that(lambda: says(config, "'shop' of [source] publications does not exist"))
        assert publications(db) == ["moved"]
        db.execute("ALTER PUBLICATION moved RENAME TO shop", insert(1, 5))
        await_that(lambda: inserted(config) == numbers(1, 5))
        await_that(lambda: not says(config, "does not exist"))
    assert publications(db) == ["shop"]


@pytest.mark.parametrize(("version", "meanwhile"), [(18, "streaming"), (16, "reconnecting")])
def test_a_start_without_a_users_publication_waits_where_the_server_cannot_decode(
    servers, database, tmp_path, version, meanwhile
):
    db = database(servers(version))
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    config = from_the_users_publication(db, tmp_path / "spool")
    db.execute("ALTER PUBLICATION shop RENAME TO moved")
    with running(config):
        await_that(lambda: says(config, "'shop' of [source] publications does not exist"))
        assert phase(config) == meanwhile
        assert publications(db) == ["moved"]
        db.execute("ALTER PUBLICATION moved RENAME TO shop", insert(1, 5))
        await_that(lambda: inserted(config) == numbers(1, 5))
    assert Spool.open(config.spool.path).identity.publications == ("shop",)


def test_a_server_that_cannot_decode_without_a_publication_is_named_with_the_way_out(
    servers, database, tmp_path
):
    db = database(servers(16))
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    config = from_the_users_publication(db, tmp_path / "spool")
    db.execute(
        "ALTER PUBLICATION shop RENAME TO moved",
        insert(1, 5),
        "ALTER PUBLICATION moved RENAME TO shop",
    )
    with running(config):
        await_that(lambda: says(config, "if that does not help, run `pgsluice drop CONFIG`"))
        assert phase(config) == "reconnecting"
    with pytest.raises(PublicationMissing, match='"shop" does not exist'):
        run_capture(config, once=True)


def test_a_publication_that_is_configured_later_has_to_exist(db, tmp_path):
    config = from_the_users_publication(db, tmp_path / "spool")
    source = config.source.model_copy(update={"publications": ("shop", "typo")})
    with pytest.raises(PublicationMissing, match="'typo' of \\[source\\] publications"):
        run_capture(config.model_copy(update={"source": source}), once=True)
    assert publications(db) == ["shop"]


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
