"""A standby is promoted while capture runs: what goes on, and what is refused.

Each test has a primary and a standby of its own, since it crashes one and promotes the other.
A standby that is stopped meanwhile is *behind*: it lacks what capture received then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.support.capturing import configure, insert, inserted, killed, numbers, phase, running
from tests.support.children import CHILDREN
from tests.support.clusters import CopiedServer
from tests.support.databases import Database
from tests.support.standby import Standby
from tests.support.threads import beside
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import read_health, run_capture
from pgsluice.cli.app import run_command
from pgsluice.config import Config
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ForeignSource, SlotLost, SourceRefused
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection
from pgsluice.spool import Spool, SpoolReader

_SETTINGS = {"fsync": "off", "autovacuum": "off", "max_prepared_transactions": "5"}


@dataclass(frozen=True)
class Pair:
    """A primary, its standby, and the database on either."""

    primary: EmbeddedServer
    standby: Standby
    name: str

    @property
    def on_primary(self) -> Database:
        return Database(self.primary, self.name)

    @property
    def on_standby(self) -> Database:
        return Database(self.standby, self.name)

    @property
    def dsn(self) -> str:
        """Both, whichever takes writes."""
        return make_conninfo(
            self.on_primary.dsn,
            host="127.0.0.1,127.0.0.1",
            port=f"{self.primary.port},{self.standby.port}",
            target_session_attrs="read-write",
        )

    def configure(self, path: Path, dsn: str | None = None) -> Config:
        return configure(self.on_primary, path, dsn=dsn or self.dsn)

    def synchronise_slot(self, config: Config) -> None:
        """Until the slot is on the standby for good: its position has to move past what the
        standby has kept, and moves with what capture acknowledges."""

        def is_there() -> bool:
            self.on_primary.execute("SELECT pg_log_standby_snapshot()")
            run_capture(config, once=True)
            self.await_replay()
            rows = self.on_standby.execute(
                "SELECT pg_sync_replication_slots()",
                "SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary",
            )
            return bool(rows)

        await_that(is_there)

    def await_replay(self) -> None:
        """Until the standby has what the primary has now."""
        end = flushed(self.on_primary)
        with self.on_standby.connect() as session:  # one session for all the questions
            await_that(lambda: replayed(session) >= end)

    def crash(self) -> None:
        self.primary.stop("immediate")

    def promote_behind(self) -> None:
        """The standby, stopped earlier, comes up when the primary is gone."""
        self.crash()
        self.standby.start()
        self.standby.promote()


def flushed(db: Database) -> Lsn:
    ((lsn,),) = db.execute("SELECT pg_current_wal_flush_lsn()")
    return Lsn.parse(lsn)


def replayed(session: psycopg.Connection[Any]) -> Lsn:
    ((lsn,),) = session.execute("SELECT pg_last_wal_replay_lsn()").fetchall()
    return Lsn.parse(lsn)


def ids(db: Database) -> list[bytes]:
    return [b"%d" % row[0] for row in db.execute("SELECT id FROM t ORDER BY id")]


def frontier(config: Config) -> Lsn:
    return SpoolReader(config.spool.path).frontier()


def said(config: Config) -> str:
    """What is in capture's way."""
    health = read_health(config.spool.path)
    return "" if health is None or health.message is None else health.message


def switch_point(config: Config) -> Lsn:
    """Where the timeline that the spool follows began."""
    return Spool.open(config.spool.path).identity.history[-1][1]


def timeline(config: Config) -> int:
    return Spool.open(config.spool.path).identity.timeline


MakePair = Callable[[int], Pair]


@pytest.fixture
def make_pair() -> Iterator[MakePair]:
    with ExitStack() as stack:

        def make(version: int) -> Pair:
            primary = stack.enter_context(CopiedServer(version, settings=_SETTINGS))
            Database(primary, "postgres").execute("CREATE DATABASE shop")
            standby = stack.enter_context(Standby(primary))
            pair = Pair(primary, standby, "shop")
            pair.on_primary.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            return pair

        yield make


@pytest.fixture
def pair(make_pair: MakePair) -> Pair:
    return make_pair(18)


@pytest.fixture
def synchronised(pair: Pair, tmp_path: Path) -> tuple[Pair, Config]:
    """Ten rows are in the spool, and the slot is on the standby."""
    return synchronise(pair, pair.configure(tmp_path / "spool"))


@pytest.fixture
def two_phase(pair: Pair, tmp_path: Path) -> tuple[Pair, Config]:
    """The same with a slot that sends prepared transactions when they are prepared."""
    config = pair.configure(tmp_path / "spool")
    source = config.source.model_copy(update={"two_phase": True})
    return synchronise(pair, config.model_copy(update={"source": source}))


def synchronise(pair: Pair, config: Config) -> tuple[Pair, Config]:
    run_capture(config, once=True)
    pair.on_primary.execute(insert(1, 10))
    pair.synchronise_slot(config)
    assert inserted(config) == numbers(1, 10)
    assert timeline(config) == 1
    return pair, config


def test_capture_follows_a_promotion_by_itself(synchronised) -> None:
    pair, config = synchronised
    with running(config):
        pair.on_primary.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
        pair.await_replay()
        pair.crash()
        pair.standby.promote()
        pair.on_standby.execute(insert(21, 30), "UPDATE t SET v = 'y' WHERE id = 1")
        await_that(lambda: inserted(config) == numbers(1, 30))
        assert timeline(config) == 2
        assert SpoolReader(config.spool.path).position() > switch_point(config)
    assert inserted(config) == ids(pair.on_standby)
    # And with the next start nothing is left to decide.
    pair.on_standby.execute(insert(31, 40))
    run_capture(config, once=True)
    assert inserted(config) == ids(pair.on_standby) == numbers(1, 40)


def test_a_spool_that_is_behind_gets_the_rest_from_the_new_primary(synchronised) -> None:
    """What it lacks is from before the switch point; its slot is behind the frontier, too."""
    pair, config = synchronised
    with running(config), ReplicationConnection.connect(pair.on_primary.dsn) as other:
        pair.on_primary.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
        # Capture loses its slot to somebody else, and what comes then.
        others(pair.on_primary, other)
        pair.on_primary.execute(insert(21, 30))
        pair.await_replay()
        pair.crash()
        assert inserted(config) == numbers(1, 20)
        pair.standby.promote()
        pair.on_standby.execute(insert(31, 40))
        await_that(lambda: inserted(config) == numbers(1, 40))
    assert inserted(config) == ids(pair.on_standby)


def others(db: Database, other: ReplicationConnection) -> None:
    """Take capture's slot, which it tries to get back."""
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'shop'"

    def is_taken() -> bool:
        ((pid,),) = db.execute(query)
        if pid is not None:
            db.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
        try:
            options = PgoutputOptions(("pgsluice",), proto_version=1, streaming="off")
            other.start_replication("shop", Lsn(0), options)
        except SourceRefused:
            return False
        return True

    await_that(is_taken)


def test_a_frontier_past_the_switch_point_hides_no_commit(synchronised) -> None:
    """WAL without changes moved it there. On the new primary there is other WAL in that place."""
    pair, config = synchronised
    pair.standby.stop()
    pair.on_primary.execute("SELECT pg_switch_wal()", "CREATE TABLE u (i int)")
    run_capture(config, once=True)
    before = frontier(config)
    pair.promote_behind()
    pair.on_standby.execute(insert(11, 20))
    assert flushed(pair.on_standby) < before
    run_capture(config, once=True)
    assert inserted(config) == ids(pair.on_standby) == numbers(1, 20)
    assert switch_point(config) < SpoolReader(config.spool.path).position() < before


def test_killed_between_frontier_and_timeline_it_decides_again(synchronised) -> None:
    pair, config = synchronised
    pair.standby.stop()
    pair.on_primary.execute("SELECT pg_switch_wal()", "CREATE TABLE u (i int)")
    run_capture(config, once=True)
    before = frontier(config)
    pair.promote_behind()
    pair.on_standby.execute(insert(11, 20))
    child = CHILDREN.Process(target=killed, args=(config, "capture.frontier_lowered=kill"))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert frontier(config) < before
    assert timeline(config) == 1
    run_capture(config, once=True)
    assert timeline(config) == 2
    assert inserted(config) == ids(pair.on_standby) == numbers(1, 20)


def test_a_spool_that_is_ahead_is_refused(synchronised, tmp_path, capsys) -> None:
    pair, config = synchronised

    def work() -> None:
        with running(config) as thread:
            pair.standby.stop()
            pair.on_primary.execute(insert(11, 20))
            await_that(lambda: inserted(config) == numbers(1, 20))
            pair.promote_behind()
            thread.join(HANGS_S)

    with pytest.raises(ForeignSource) as caught:
        work()
    assert caught.value.switch_point < caught.value.position
    assert ids(pair.on_standby) == numbers(1, 10)
    # Nor later, when the new primary has more WAL than the spool.
    pair.on_standby.execute("SELECT pg_switch_wal()", insert(11, 12))
    file = tmp_path / "pgsluice.toml"
    file.write_text(
        f'[source]\ndsn = "{pair.dsn}"\nslot = "shop"\n[spool]\npath = "{config.spool.path}"\n'
    )
    assert run_command(["check", str(file)]) == 1
    assert (
        "error   timeline: the server lacks changes that pgsluice has replicated"
        in capsys.readouterr().out
    )
    assert run_command(["capture", str(file), "--once"]) == 3
    message = capsys.readouterr().err
    assert "the server lacks changes that pgsluice has replicated" in message
    assert "then start pgsluice again, which copies every table" in message
    assert "Traceback" not in message
    assert inserted(config) == numbers(1, 20)
    assert timeline(config) == 1


def test_a_primary_that_waits_for_its_standby_keeps_the_spool_from_running_ahead(
    synchronised,
) -> None:
    """The advice of docs/failover.md: with it a promotion never ends in a refusal."""
    pair, config = synchronised
    pair.on_primary.execute(
        f"ALTER SYSTEM SET synchronized_standby_slots = '{pair.standby.slot}'",
        "SELECT pg_reload_conf()",
    )
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"
    with running(config):
        pair.on_primary.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
        pair.standby.stop()
        pair.on_primary.execute(insert(21, 30))
        await_that(lambda: bool(pair.on_primary.execute(waits)))
        assert inserted(config) == numbers(1, 20)
        pair.promote_behind()
        pair.on_standby.execute(insert(31, 40))
        await_that(lambda: timeline(config) == 2)
        await_that(lambda: inserted(config) == numbers(1, 20) + numbers(31, 40))
    assert inserted(config) == ids(pair.on_standby)


PREPARE = "PREPARE TRANSACTION 'p'"


def test_a_prepared_transaction_ends_on_the_new_primary(two_phase) -> None:
    pair, config = two_phase
    with pair.on_primary.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(insert(11, 20))
        connection.execute(PREPARE)
    run_capture(config, once=True)
    assert inserted(config) == numbers(1, 10)
    pair.await_replay()
    pair.crash()
    pair.standby.promote()
    run_capture(config, once=True)
    assert timeline(config) == 2
    pair.on_standby.execute("COMMIT PREPARED 'p'", insert(21, 30))
    run_capture(config, once=True)
    assert inserted(config) == ids(pair.on_standby) == numbers(1, 30)


def test_a_prepare_past_the_switch_point_is_refused(two_phase) -> None:
    """Nothing of it is in the lake, but its end would be missed, or another's be taken for it."""
    pair, config = two_phase
    pair.standby.stop()
    with pair.on_primary.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(insert(11, 20))
        connection.execute(PREPARE)
    run_capture(config, once=True)
    pair.promote_behind()
    with pytest.raises(ForeignSource) as caught:
        run_capture(config, once=True)
    assert caught.value.position > caught.value.switch_point
    assert SpoolReader(config.spool.path).position() <= caught.value.switch_point


def test_several_promotions_in_a_row(synchronised) -> None:
    pair, config = synchronised
    pair.await_replay()
    pair.crash()
    pair.standby.promote()
    with Standby(pair.standby) as second:
        again = Pair(pair.standby, second, "shop")
        config = again.configure(config.spool.path)
        again.on_primary.execute(insert(11, 20))
        again.synchronise_slot(config)
        assert timeline(config) == 2
        with running(config):
            await_that(lambda: phase(config) == "streaming")
            again.on_primary.execute(insert(21, 30))
            await_that(lambda: inserted(config) == numbers(1, 30))
            again.await_replay()
            again.crash()
            second.promote()
            again.on_standby.execute(insert(31, 40))
            await_that(lambda: inserted(config) == numbers(1, 40))
        assert [one for one, _ in Spool.open(config.spool.path).identity.history] == [1, 2]
        assert inserted(config) == ids(again.on_standby)


def test_the_old_primary_is_not_followed_back(synchronised) -> None:
    pair, config = synchronised
    pair.await_replay()
    pair.crash()
    pair.standby.promote()
    pair.on_standby.execute(insert(11, 20))
    run_capture(config, once=True)
    pair.primary.start()
    back = pair.configure(config.spool.path, dsn=pair.on_primary.dsn)
    with pytest.raises(SourceRefused, match="old primary"):
        run_capture(back, once=True)
    assert timeline(config) == 2
    # Nor does it stop a capture that meets it in passing: it waits for the other.
    pair.crash()
    moving = make_conninfo(
        pair.on_primary.dsn, host="127.0.0.1,127.0.0.1",
        port=f"{pair.standby.port},{pair.primary.port}", target_session_attrs="read-write",
    )  # fmt: skip
    with running(pair.configure(config.spool.path, dsn=moving)):
        await_that(lambda: phase(config) == "streaming")
        pair.primary.start()
        pair.standby.stop("immediate")
        await_that(lambda: "old primary" in said(config))
        pair.standby.start()
        pair.on_standby.execute(insert(21, 30))
        await_that(lambda: inserted(config) == numbers(1, 30))


def test_a_standby_that_keeps_the_slot_in_step_is_waited_for(synchronised) -> None:
    pair, config = synchronised
    one = pair.configure(
        config.spool.path,
        dsn=make_conninfo(pair.dsn, target_session_attrs="any"),
    )
    with running(one):
        await_that(lambda: phase(config) == "streaming")
        pair.await_replay()
        pair.crash()
        await_that(lambda: "after the standby is promoted" in said(config))
        pair.standby.promote()
        pair.on_standby.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
    assert inserted(config) == ids(pair.on_standby)


def test_a_slot_that_is_not_there_yet_is_waited_for_until_the_promotion(pair, tmp_path) -> None:
    """It was never synchronised: as long as the server is a standby that may still come."""
    either = make_conninfo(pair.dsn, target_session_attrs="any")
    config = pair.configure(tmp_path / "spool", dsn=either)

    def work() -> None:
        with running(config) as thread:
            await_that(lambda: phase(config) == "streaming")
            pair.await_replay()
            pair.crash()
            await_that(lambda: "a standby that does not have slot" in said(config))
            pair.standby.promote()
            thread.join(HANGS_S)

    with pytest.raises(SlotLost, match="promoted without it"):
        work()


def test_a_transaction_that_streams_ends_with_its_primary(synchronised) -> None:
    """Its parts are not of the new primary's history, and are no commit that would be missed."""
    pair, config = synchronised
    spool = config.spool.model_copy(update={"segment_bytes": 64 * 1024})
    config = config.model_copy(update={"spool": spool})
    pair.on_primary.execute(
        "ALTER SYSTEM SET logical_decoding_work_mem = '64kB'", "SELECT pg_reload_conf()"
    )
    with running(config), closing(pair.on_primary.connect()) as connection:
        connection.execute("BEGIN")
        connection.execute(insert(1001, 6000, "repeat('x', 100)"))
        await_that(lambda: any((config.spool.path / "parts").rglob("*.arrow")))
        # A commit flushes the page with the open transaction's last row, which nobody else does
        # for 15 s: until then the standby cannot replay up to the flush position.
        pair.on_primary.execute("CREATE TABLE u (i int)")
        pair.await_replay()
        pair.crash()
        pair.standby.promote()
        pair.on_standby.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
    assert inserted(config) == ids(pair.on_standby)
    assert not any((config.spool.path / "parts").rglob("*.arrow"))


def test_a_standby_that_is_read_itself_is_promoted(pair, tmp_path) -> None:
    """Its walsender goes on without a word, past the switch point: capture looks out for it."""
    pair.on_primary.execute("CREATE PUBLICATION pgsluice FOR TABLE t")
    pair.await_replay()
    config = pair.configure(tmp_path / "spool", dsn=pair.on_standby.dsn)
    with snapshots_logged(pair.on_primary):
        run_capture(config, once=True)
    with running(config):
        await_that(lambda: phase(config) == "streaming")
        pair.on_primary.execute(insert(1, 10))
        await_that(lambda: inserted(config) == numbers(1, 10))
        pair.crash()
        pair.standby.promote()
        pair.on_standby.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
    assert timeline(config) == 2
    pair.on_standby.execute(insert(21, 30))
    run_capture(config, once=True)
    assert inserted(config) == ids(pair.on_standby) == numbers(1, 30)


def snapshots_logged(db: Database) -> AbstractContextManager[threading.Thread]:
    """A slot is made on a standby when its primary says which transactions run."""

    def log(done: threading.Event) -> None:
        while not done.wait(0.1):
            db.execute("SELECT pg_log_standby_snapshot()")

    return beside(log)


def test_without_the_slot_the_changes_cannot_be_had(make_pair, tmp_path) -> None:
    """16 has no failover slots: the promoted server has none."""
    pair = make_pair(16)
    config = pair.configure(tmp_path / "spool")

    def work() -> None:
        with running(config) as thread:
            await_that(lambda: phase(config) == "streaming")
            pair.on_primary.execute(insert(1, 10))
            await_that(lambda: inserted(config) == numbers(1, 10))
            pair.await_replay()
            pair.crash()
            pair.standby.promote()
            thread.join(HANGS_S)

    with pytest.raises(SlotLost, match="promoted without it") as caught:
        work()
    assert caught.value.exit_code == 3
