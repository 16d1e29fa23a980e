"""Streamed and prepared transactions of real servers: what is committed is what is read, once.

``logical_decoding_work_mem`` is as small as it can be, so that a few hundred rows are streamed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.support.capturing import confirmed, running
from tests.support.children import CHILDREN
from tests.support.databases import Database
from tests.support.spool_changes import changes, inserted
from tests.support.waiting import await_that

from pgsluice.capture import read_health, run_capture
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.errors import SourceRefused
from pgsluice.events import CapturePhase
from pgsluice.failpoints import arm
from pgsluice.spool import SpoolReader

pytestmark = pytest.mark.pg(">= 14")
Configure = Callable[..., Config]


@pytest.fixture
def db(database) -> Database:
    one = database()
    one.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
    )
    return one


@pytest.fixture
def configure(db, tmp_path) -> Configure:
    def make(segment_bytes: int = 16 * 2**20, max_bytes: int | None = None, **source) -> Config:
        return Config(
            source=SourceConfig(
                dsn=f"{db.dsn} options='-c logical_decoding_work_mem=64kB'", slot=db.name, **source
            ),
            spool=SpoolConfig(
                path=tmp_path / "spool", segment_bytes=segment_bytes, max_bytes=max_bytes
            ),
        )

    return make


def once(config: Config) -> Path:
    run_capture(config, once=True)
    return config.spool.path


def rows(first: int, last: int, table: str = "t") -> str:
    text = "repeat('x', 100)"
    return f"INSERT INTO {table} SELECT i, {text} FROM generate_series({first}, {last}) i"


def major(db: Database) -> int:
    with db.connect() as connection:
        return connection.info.server_version // 10000


def streamed(path: Path) -> int:
    """Transactions that came in a stream."""
    reader = SpoolReader(path)
    return sum(getattr(info.header, "in_stream", False) for info in reader.segments(reader.start()))


@pytest.mark.parametrize("streaming", ["off", "on", "parallel"])
def test_a_transaction_that_is_streamed_or_not_is_the_same(db, configure, streaming):
    if streaming == "parallel" and major(db) < 16:
        pytest.skip("streaming = parallel needs PostgreSQL 16")
    config = configure(streaming=streaming)
    once(config)
    db.execute(rows(1, 5), rows(6, 3000), "UPDATE t SET v = 'y' WHERE id <= 2")
    path = once(config)
    assert inserted(path) == [*range(1, 3001)]
    assert [row["id"] for action, row in changes(path) if action == "U"] == [1, 2]
    assert streamed(path) == (0 if streaming == "off" else 1)
    assert SpoolReader(path).spool.identity.options["streaming"] == streaming


@pytest.mark.parametrize("segment_bytes", [16 * 1024, 16 * 2**20])
def test_savepoints_that_are_rolled_back_are_not_there(db, configure, segment_bytes):
    config = configure(segment_bytes)
    once(config)
    with db.connect() as one, db.connect() as two:
        one.execute("BEGIN")
        two.execute("BEGIN")
        one.execute(rows(1, 1000))
        one.execute("SAVEPOINT a")
        one.execute(rows(1001, 2000))
        two.execute(rows(1, 1000, "u"))
        one.execute("SAVEPOINT b")
        one.execute(rows(2001, 3000))
        one.execute("RELEASE b")
        one.execute("ROLLBACK TO a")
        two.execute("SAVEPOINT c")
        two.execute(rows(1001, 2000, "u"))
        two.execute("RELEASE c")
        one.execute(rows(3001, 4000))
        one.execute("COMMIT")
        two.execute("ROLLBACK")
        two.execute(rows(5001, 5010, "u"))
    path = once(config)
    assert inserted(path) == [*range(1, 1001), *range(3001, 4001), *range(5001, 5011)]
    reader = SpoolReader(path)
    (reference,) = [info for info in reader.segments(reader.start()) if info.is_reference]
    assert reference.header.counts.changes == 2000
    assert next(iter(reference.header.counts.relations.values())).inserts == 2000
    on_disk = {f"parts/{one.parent.name}/{one.name}" for one in (path / "parts").glob("*/*")}
    assert on_disk == {part.name for part in reference.header.parts}


def test_each_row_has_the_columns_of_its_time(db, configure):
    """ALTER TABLE between transactions, inside one, and inside what is rolled back."""
    config = configure()
    once(config)
    db.execute(
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD w int",
        "INSERT INTO t VALUES (2, 'b', 2)",
    )
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(101, 1000))
        one.execute("ALTER TABLE t ADD x int DEFAULT 9")
        one.execute(rows(1001, 2000))
        one.execute("SAVEPOINT a")
        one.execute("ALTER TABLE t ADD y int")
        one.execute(rows(2001, 3000))
        one.execute("ROLLBACK TO a")
        one.execute(rows(3001, 4000))
        one.execute("COMMIT")
    db.execute("INSERT INTO t VALUES (3, 'c', 3, 3)")
    path = once(config)
    names = {row["id"]: "".join(row) for _, row in changes(path)}
    assert {names[i] for i in (1,)} == {"idv"}
    assert {names[i] for i in (2, *range(101, 1001))} == {"idvw"}
    assert {names[i] for i in (*range(1001, 2001), *range(3001, 4001), 3)} == {"idvwx"}
    assert len(names) == 3 + 900 + 1000 + 1000
    # What the catalog knows of the columns that it made is there with its rows.
    reader = SpoolReader(path)
    (reference,) = [info for info in reader.segments(reader.start()) if info.is_reference]
    (told,) = reference.header.relations.values()
    assert told.facts.primary_key == ("id",)
    assert [one.name for one in told.facts.columns if one.name == "x"] == ["x"]


@pytest.mark.parametrize(
    "place",
    [
        "spool.after_part@1",
        "spool.after_part@5",
        "spool.before_rename@4",
        "spool.after_rename@7",
        "spool.after_segment@2",
    ],
)
def test_killed_in_a_stream_nothing_is_lost_or_doubled(db, configure, place):
    config = configure(32 * 1024)
    once(config)
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(1, 6000))  # many chunks of frames, so that there are enough parts
        one.execute("SAVEPOINT a")
        db.execute(rows(50001, 50010))
        one.execute(rows(6001, 9000))
        one.execute("ROLLBACK TO a")
        one.execute(rows(9001, 12000))
        one.execute("COMMIT")
    db.execute(rows(60001, 60010))
    kill(config, place)
    path = once(config)
    expected = [
        *range(50001, 50011), *range(1, 6001), *range(9001, 12001), *range(60001, 60011),
    ]  # fmt: skip
    assert inserted(path) == expected
    assert parts_of(path) == files(path)


def kill(config: Config, place: str) -> None:
    name, _, times = place.partition("@")
    child = CHILDREN.Process(target=run_killed, args=(config, f"{name}=kill@{times or 1}"))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def run_killed(config: Config, failpoints: str) -> None:
    arm(failpoints)
    run_capture(config, once=True)


def files(path: Path) -> set[str]:
    return {f"parts/{one.parent.name}/{one.name}" for one in (path / "parts").glob("*/*.arrow")}


def parts_of(path: Path) -> set[str]:
    reader = SpoolReader(path)
    infos = [info for info in reader.segments(reader.start()) if info.is_reference]
    return {part.name for info in infos for part in info.header.parts}


def test_a_stream_in_progress_holds_nothing_back(db, configure):
    """It lies in parts; what commits meanwhile is acknowledged, and it comes again."""
    config = configure(32 * 1024)
    once(config)
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(1, 2000))
        db.execute(rows(5001, 5001))
        path = once(config)
        assert inserted(path) == [5001]
        ((confirmed,),) = db.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
            f" WHERE slot_name = '{db.name}'"
        )
        assert confirmed == str(SpoolReader(path).frontier())
        one.execute("COMMIT")
    assert inserted(once(config)) == [5001, *range(1, 2001)]


@pytest.mark.parametrize("count", [3, 2000], ids=["small", "streamed"])
@pytest.mark.pg(">= 15")
def test_a_prepared_transaction_is_there_after_its_commit_once(db, configure, count):
    config = configure(64 * 1024, two_phase=True)
    once(config)
    with db.connect() as one, db.connect() as two:
        one.execute("BEGIN")
        one.execute(rows(1, count))
        one.execute("PREPARE TRANSACTION 'one; it''s'")
        two.execute("BEGIN")
        two.execute(rows(10001, 10000 + count))
        two.execute("PREPARE TRANSACTION 'two'")
    path = once(config)
    assert inserted(path) == []
    assert len([*(path / "prepared").glob("*/*")]) == 2
    db.execute(rows(20001, 20001), "COMMIT PREPARED 'one; it''s'", "ROLLBACK PREPARED 'two'")
    assert inserted(once(config)) == [20001, *range(1, count + 1)]
    assert not [*(path / "prepared").glob("*/*")]
    assert parts_of(path) == files(path)
    db.execute(rows(20002, 20002))
    assert inserted(once(config)) == [20001, *range(1, count + 1), 20002]


@pytest.mark.parametrize(
    "place", ["spool.after_part", "spool.after_prepared", "spool.before_rename@2"]
)
@pytest.mark.pg(">= 15")
def test_killed_at_a_prepare_nothing_is_lost_or_doubled(db, configure, place):
    config = configure(two_phase=True)
    once(config)
    prepared(db, 1, 2000, "a")
    kill(config, place)
    path = once(config)
    db.execute("COMMIT PREPARED 'a'")
    assert inserted(once(config)) == [*range(1, 2001)]
    assert parts_of(path) == files(path)


@pytest.mark.parametrize("place", ["spool.before_rename", "spool.after_commit_prepared"])
@pytest.mark.pg(">= 15")
def test_killed_at_a_commit_prepared_nothing_is_lost_or_doubled(db, configure, place):
    config = configure(two_phase=True)
    once(config)
    prepared(db, 1, 2000, "a")
    once(config)
    db.execute("COMMIT PREPARED 'a'", rows(5001, 5001))
    kill(config, place)
    path = once(config)
    assert inserted(path) == [*range(1, 2001), 5001]
    assert parts_of(path) == files(path)
    assert not [*(path / "prepared").glob("*/*")]


def prepared(db: Database, first: int, last: int, gid: str) -> None:
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(first, last))
        one.execute(f"PREPARE TRANSACTION '{gid}'")


@pytest.mark.pg(">= 15")
def test_prepared_before_the_slots_consistent_point_it_comes_with_its_commit(db, configure):
    """Making a slot waits for open transactions twice; the second time others may prepare."""
    config = configure(two_phase=True)
    capture = threading.Thread(target=once, args=(config,))
    with db.connect() as first, db.connect() as second:
        first.execute("BEGIN")
        first.execute(rows(101, 101))
        capture.start()
        await_one_who_waits_for(first)
        second.execute("BEGIN")
        second.execute(rows(102, 102))
        first.execute("COMMIT")
        await_one_who_waits_for(second)
        prepared(db, 1, 10, "early")
        second.execute("COMMIT")
    capture.join()
    path = config.spool.path
    before = inserted(path)
    db.execute("COMMIT PREPARED 'early'")
    assert inserted(once(config)) == [*before, *range(1, 11)]
    assert not [*(path / "prepared").glob("*/*")]


@pytest.mark.pg(">= 16")
def test_a_prepare_of_another_origin_may_be_committed_here(db, configure):
    """With origin = "none" the server leaves out the PREPARE, and sends the COMMIT PREPARED."""
    config = configure(two_phase=True, origin="none")
    once(config)
    with db.connect() as applier:
        applier.execute(f"SELECT pg_replication_origin_create('{db.name}')")
        applier.execute(f"SELECT pg_replication_origin_session_setup('{db.name}')")
        applier.execute("BEGIN")
        applier.execute(rows(1, 10))
        applier.execute("PREPARE TRANSACTION 'foreign'")
    db.execute("COMMIT PREPARED 'foreign'", rows(11, 11))
    assert inserted(once(config)) == [11]
    db.execute(f"SELECT pg_replication_origin_drop('{db.name}')", rows(12, 12))
    assert inserted(once(config)) == [11, 12]


def await_one_who_waits_for(connection: psycopg.Connection) -> None:
    """Until somebody waits for the end of this session's transaction."""
    ((xid,),) = connection.execute("SELECT pg_current_xact_id()::xid")
    waiting = "SELECT 1 FROM pg_locks WHERE transactionid = %s AND NOT granted"
    await_that(lambda: connection.execute(waiting, [xid]).fetchone() is not None, "somebody waits")


@pytest.mark.pg(">= 15")
def test_an_empty_prepared_transaction_leaves_nothing(db, configure):
    config = configure(two_phase=True)
    once(config)
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute("CREATE TABLE not_published (i int)")
        one.execute("PREPARE TRANSACTION 'empty'")
    path = once(config)
    db.execute("COMMIT PREPARED 'empty'", rows(1, 1))
    assert inserted(once(config)) == [1]
    assert not [*(path / "prepared").glob("*/*")]


@pytest.mark.parametrize("was", [True, False])
@pytest.mark.pg(">= 15")
def test_two_phase_is_the_slots_for_life(db, configure, was):
    once(configure(two_phase=was))
    with pytest.raises(SourceRefused, match="was created with two_phase") as caught:
        once(configure(two_phase=not was))
    assert f"set two_phase = {str(was).lower()}" in caught.value.hint


def test_what_the_server_cannot_is_refused_by_name(servers, tmp_path):
    dsn = servers(10).dsn("postgres")
    for named in ({"streaming": "on"}, {"two_phase": True}, {"binary": True}, {"origin": "none"}):
        source = SourceConfig(dsn=dsn, slot="refused", **named)
        config = Config(source=source, spool=SpoolConfig(path=tmp_path / "spool"))
        with pytest.raises(SourceRefused, match=f"PostgreSQL 10 cannot do {next(iter(named))}"):
            once(config)


@pytest.mark.pg(">= 16")
def test_origin_none_leaves_away_what_came_by_replication(db, configure):
    config = configure(origin="none")
    once(config)
    with db.connect() as one:
        one.execute(f"SELECT pg_replication_origin_create('{db.name}')")
        one.execute(rows(1, 1))
        one.execute(f"SELECT pg_replication_origin_session_setup('{db.name}')")
        one.execute(rows(2, 2000))
        one.execute("SELECT pg_replication_origin_session_reset()")
        one.execute(f"SELECT pg_replication_origin_drop('{db.name}')")
        one.execute(rows(3001, 3001))
    assert inserted(once(config)) == [1, 3001]


def test_messages_outside_transactions_between_blocks_are_kept_in_order(db, configure):
    config = configure(messages=True, streaming="on")
    once(config)
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(1, 1000))
        db.execute("SELECT pg_logical_emit_message(false, 'p', 'between')")
        one.execute(rows(1001, 2000))
        one.execute("SELECT pg_logical_emit_message(true, 'p', 'inside')")
        one.execute("COMMIT")
    path = once(config)
    reader = SpoolReader(path)
    tags = []
    for info in reader.segments(reader.start()):
        for view in reader.views(info):
            tags += [(view.block.in_stream, chr(tag)) for tag in view.block.tags]
    assert tags.count((False, "M")) == 1
    assert tags.count((True, "M")) == 1
    assert tags.index((False, "M")) < tags.index((True, "I"))
    assert inserted(path) == [*range(1, 2001)]


def test_a_message_of_what_was_rolled_back_is_not_there(db, configure):
    """In a stream it has the top-level xid and stays: so messages are not streamed by default."""
    config = configure(messages=True)
    once(config)
    with db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(1, 1000))
        one.execute("SAVEPOINT a")
        one.execute("SELECT pg_logical_emit_message(true, 'p', repeat('x', 100000))")
        one.execute("ROLLBACK TO a")
        one.execute("SELECT pg_logical_emit_message(true, 'p', 'kept')")
        one.execute("COMMIT")
    path = once(config)
    reader = SpoolReader(path)
    (view,) = [view for info in reader.segments(reader.start()) for view in reader.views(info)]
    messages = [view.block.message(i) for i in (view.block.tags == ord("M")).nonzero()[0]]
    assert [one[-4:] for one in messages] == [b"kept"]
    assert inserted(path) == [*range(1, 1001)]


def fills(config: Config, xid: int, why: str) -> bool:
    """Whether capture says that the spool is full of a transaction."""
    health = read_health(config.spool.path)
    if health is None or health.phase is not CapturePhase.WAITING:
        return False
    said = health.message or ""
    assert said.startswith("the spool is at its size limit; nothing more is acknowledged. ")
    return f"MiB are transaction {xid}, which {why}" in said


def xid_of(connection: psycopg.Connection) -> int:
    ((xid,),) = connection.execute("SELECT txid_current() % 4294967296").fetchall()
    return int(xid)


FULL_BYTES = 2**20
MANY = 20_000
"""Rows that are larger than a spool of this size."""


def test_a_spool_that_is_full_of_an_open_transaction_has_room_after_its_rollback(db, configure):
    """Of a savepoint, and of the whole: capture goes on by itself."""
    config = configure(64 * 1024, max_bytes=FULL_BYTES)
    once(config)
    with running(config), db.connect() as open_one:
        open_one.execute("BEGIN")
        xid = xid_of(open_one)
        open_one.execute(rows(1, 5))
        open_one.execute("SAVEPOINT a")
        open_one.execute(rows(6, MANY))
        await_that(lambda: fills(config, xid, "is open"))
        db.execute(rows(1, 3, "u"))
        open_one.execute("ROLLBACK TO a")
        open_one.execute(rows(-4, 0))
        open_one.execute("COMMIT")
        await_that(lambda: inserted(config.spool.path) == [1, 2, 3, *range(1, 6), *range(-4, 1)])

        open_one.execute("BEGIN")
        xid = xid_of(open_one)
        open_one.execute(rows(6, MANY))
        await_that(lambda: fills(config, xid, "is open"))
        open_one.execute("ROLLBACK")
        open_one.execute(rows(4, 6, "u"))
        await_that(lambda: inserted(config.spool.path)[-3:] == [4, 5, 6])
        health = read_health(config.spool.path)
        assert health is not None
        assert (health.phase, health.message) == (CapturePhase.STREAMING, None)
    assert not list(config.spool.path.glob("parts/*/*"))


def test_a_disk_that_others_fill_is_said_to_be_full_and_then_capture_goes_on(
    db, configure, small_disk
):
    """Without a limit of the spool, its disk is one, before the last byte of it is written."""
    config = configure(64 * 1024)
    small_disk(config.spool.path, "8m")
    once(config)
    others = config.spool.path / "of another program"

    def says(phase: CapturePhase, message: str | None) -> bool:
        health = read_health(config.spool.path)
        return health is not None and (health.phase, health.message) == (phase, message)

    with running(config):
        db.execute(rows(1, 3))
        await_that(lambda: inserted(config.spool.path) == [1, 2, 3])
        others.write_bytes(bytes(15 * 2**19))
        full = "the spool's disk is 90 % full; nothing more is acknowledged"
        await_that(lambda: says(CapturePhase.WAITING, full))
        acknowledged = confirmed(db)
        db.execute(rows(4, 6))
        assert confirmed(db) == acknowledged
        others.unlink()
        await_that(lambda: inserted(config.spool.path)[-3:] == [4, 5, 6])
        await_that(lambda: says(CapturePhase.STREAMING, None))


@pytest.mark.pg(">= 15")  # two_phase
def test_a_spool_that_is_full_of_prepared_transactions_has_room_after_their_rollback(db, configure):
    config = configure(64 * 1024, max_bytes=FULL_BYTES, two_phase=True)
    once(config)
    with running(config), db.connect() as one:
        for gid, first, last in (("kept", 1, 3000), ("full", 10_000, 10_000 + MANY)):
            one.execute("BEGIN")
            xid = xid_of(one)
            one.execute(rows(first, last))
            one.execute(f"PREPARE TRANSACTION '{db.name}_{gid}'")
            if gid == "kept":
                await_that(lambda: len(list(config.spool.path.glob("prepared/*/*"))) == 1)
        await_that(lambda: fills(config, xid, "is open"))
        one.execute(f"ROLLBACK PREPARED '{db.name}_full'")
        one.execute(f"COMMIT PREPARED '{db.name}_kept'")
        await_that(lambda: inserted(config.spool.path) == [*range(1, 3001)])


def test_a_transaction_that_commits_and_does_not_fit_is_named(db, configure):
    """Without streaming, too: then one that is rolled back is never sent."""
    config = configure(64 * 1024, max_bytes=FULL_BYTES, streaming="off")
    once(config)
    with running(config), db.connect() as one:
        one.execute("BEGIN")
        one.execute(rows(1, MANY))
        one.execute("ROLLBACK")
        one.execute(rows(1, 3, "u"))
        await_that(lambda: inserted(config.spool.path) == [1, 2, 3])
        one.execute("BEGIN")
        xid = xid_of(one)
        one.execute(rows(1, MANY))
        one.execute("COMMIT")
        await_that(lambda: fills(config, xid, "has committed and needs more room"))
    larger = configure(64 * 1024, max_bytes=16 * FULL_BYTES, streaming="off")
    assert inserted(once(larger))[-MANY:] == [*range(1, MANY + 1)]
