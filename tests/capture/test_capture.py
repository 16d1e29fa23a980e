"""Capture against a real server: what it receives, when it acknowledges, how it ends."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from tests.support.capturing import (
    configure,
    confirmed,
    insert,
    inserted,
    killed,
    numbers,
    phase,
    running,
)
from tests.support.children import CHILDREN
from tests.support.databases import Database
from tests.support.waiting import await_that

from pgsluice.capture import prepare_source, read_health, run_capture
from pgsluice.capture.process import Waits
from pgsluice.capture.source.slot import connect_with_retry
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.errors import (
    ForeignSource,
    Gap,
    SlotInUse,
    SlotLost,
    SourceRefused,
    SourceUnreachable,
    SpoolBusy,
    SpoolFull,
)
from pgsluice.failpoints import arm
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection
from pgsluice.spool import Spool, SpoolReader, SpoolWriter, relations_after

PARTS_ROWS = 20_000
"""A transaction of so many rows has more than five parts of 64 KiB: a part ends with the chunk that
makes it full, and a chunk has up to 1,024 messages of about 25 bytes."""


@pytest.fixture
def db(database) -> Database:
    one = database()
    one.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return one


@pytest.fixture
def config(db, tmp_path) -> Config:
    return configure(db, tmp_path / "spool")


def test_once_receives_what_there_is_and_acknowledges_it(db, config):
    run_capture(config, once=True)
    db.execute(insert(1, 100), "UPDATE t SET v = 'y' WHERE id < 3", "DELETE FROM t WHERE id = 5")
    run_capture(config, once=True)
    assert inserted(config) == numbers(1, 100)
    reader = SpoolReader(config.spool.path)
    ((oid,),) = db.execute("SELECT 't'::regclass::oid::int")
    counts = [info.header.counts.relations[oid] for info in reader.segments(reader.start())]
    assert sum(one.updates for one in counts) == 2
    assert sum(one.deletes for one in counts) == 1
    assert confirmed(db) == reader.frontier()
    # Nothing new: no segment, and it ends.
    before = reader.position()
    run_capture(config, once=True)
    assert reader.position() == before


def test_a_slot_without_published_changes_moves_on(db, config):
    run_capture(config, once=True)
    start = confirmed(db)
    db.execute("CREATE UNLOGGED TABLE u (i int)", "SELECT pg_switch_wal()")
    db.execute("CREATE TABLE later (i int)")
    run_capture(config, once=True)
    assert confirmed(db) > start
    reader = SpoolReader(config.spool.path)
    assert reader.frontier() >= confirmed(db)
    run_capture(config, once=True)  # and it is no gap


def test_a_jump_of_the_wal_is_believed_as_far_as_the_server_has_flushed_it(db, config):
    run_capture(config, once=True)
    start = confirmed(db)
    for n in range(3):
        db.execute(insert(n, n), "SELECT pg_switch_wal()")
    run_capture(config, once=True)
    assert confirmed(db) - start > 2 * config.spool.segment_bytes
    assert inserted(config) == numbers(0, 2)


def test_facts_stand_behind_the_first_relation_of_a_connection_and_when_they_change(db, config):
    run_capture(config, once=True)
    db.execute(insert(1, 1))
    run_capture(config, once=True)
    db.execute(insert(2, 2), "ALTER TABLE t ADD COLUMN w int DEFAULT 7", insert(3, 3, "'x', 1"))
    run_capture(config, once=True)
    reader = SpoolReader(config.spool.path)
    views = [view for one in reader.segments(reader.start()) for view in reader.views(one)]
    tags = b"".join(view.block.tags.tobytes() for view in views)
    # The second connection looked when the column was there already: its facts did not change.
    assert (tags.count(b"R"), tags.count(b"R#")) == (3, 2)
    ((oid,),) = db.execute("SELECT 't'::regclass::oid::int")
    facts = relations_after(views[-1].relations, views[-1].block)[oid].facts
    assert facts is not None
    # Up to 10 a column with a default rewrote the table; nothing is missing in its rows.
    missing = "7" if db.server.programs.major >= 11 else None
    assert [(column.name, column.missing) for column in facts.columns] == [
        ("id", None), ("v", None), ("w", missing),
    ]  # fmt: skip


def test_a_transaction_larger_than_a_segment_comes_in_parts(db, tmp_path):
    config = configure(db, tmp_path / "spool", segment_bytes=64 * 1024)
    run_capture(config, once=True)
    db.execute(insert(1, PARTS_ROWS), insert(PARTS_ROWS + 1, PARTS_ROWS + 1))
    run_capture(config, once=True)
    reader = SpoolReader(config.spool.path)
    infos = reader.segments(reader.start())
    (reference,) = [info for info in infos if info.is_reference]
    assert len(reference.header.parts) > 3
    assert inserted(config) == numbers(1, PARTS_ROWS + 1)
    ordinals = [n for view in reader.views(reference) for n in view.block.ordinals.tolist()]
    assert ordinals == sorted(ordinals)
    assert ordinals[-1] == PARTS_ROWS


@pytest.mark.parametrize(
    "place", ["spool.before_rename@4", "spool.after_segment@1", "spool.after_part@3"]
)
def test_killed_and_started_again_nothing_is_lost_or_doubled(db, tmp_path, place):
    config = configure(db, tmp_path / "spool", segment_bytes=64 * 1024)
    run_capture(config, once=True)
    last = 10 + PARTS_ROWS
    db.execute(insert(1, 10), insert(11, last), insert(last + 1, last + 2))
    name, _, times = place.partition("@")
    child = CHILDREN.Process(target=killed, args=(config, f"{name}=kill@{times}"))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    run_capture(config, once=True)
    assert inserted(config) == numbers(1, last + 2)


def test_it_acknowledges_only_what_is_durable(db, config):
    """Its disk fills up: the server keeps everything, and the next start has it."""
    run_capture(config, once=True)
    start = confirmed(db)
    db.execute(insert(1, 10))
    arm("spool.before_fsync=enospc")
    try:
        with pytest.raises(SpoolFull):
            run_capture(config, once=True)
    finally:
        arm("")
    assert confirmed(db) == start
    run_capture(config, once=True)
    assert inserted(config) == numbers(1, 10)


def test_live_it_is_visible_soon_and_survives_the_server(db, config):
    with running(config):
        await_that(lambda: SpoolReader.is_there(config.spool.path))
        db.execute(insert(1, 10))
        await_that(lambda: inserted(config) == numbers(1, 10))
        db.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{db.name}'"
        )
        db.execute(insert(11, 20))
        await_that(lambda: inserted(config) == numbers(1, 20))
        await_that(lambda: confirmed(db) >= SpoolReader(config.spool.path).position())
    health = read_health(config.spool.path)
    assert health is not None
    assert (health.phase, health.error) == ("stopped", None)


def test_at_the_size_limit_it_waits_on_the_same_connection(db, tmp_path):
    config = configure(db, tmp_path / "spool", max_bytes=2**20)
    one = config.model_copy(update={"subscriptions": (a_subscription(tmp_path),)})
    with running(one):
        await_that(lambda: SpoolReader.is_there(one.spool.path))
        for n in range(2):
            db.execute(insert(n * 5000 + 1, n * 5000 + 5000, "repeat('x', 100)"))
        await_that(lambda: "waiting" in (phase(one) or ""))
        sender = walsender(db)
        db.execute(insert(10001, 10001))
        beyond = Lsn.parse(db.execute("SELECT pg_current_wal_flush_lsn()")[0][0])
        assert confirmed(db) < beyond
        register(one)
        await_that(lambda: confirmed(db) >= beyond)
        await_that(lambda: "waiting" not in (phase(one) or "waiting"))
        assert walsender(db) == sender


def walsender(db: Database) -> int:
    """The server's process that sends the stream."""
    query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{db.name}'"
    ((pid,),) = db.execute(query)
    return pid


def a_subscription(tmp_path: Path):
    from pgsluice.config import SubscriptionConfig

    return SubscriptionConfig.model_validate(
        {"name": "lake", "sink": {"type": "delta", "path": str(tmp_path / "{table}")}}
    )


def register(config: Config) -> None:
    """A subscription that has applied everything, now and for ever."""
    from pgsluice.spool import Owner, RecordStore, SubscriptionRecord

    far = Lsn(2**62)
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", far, far)
    RecordStore.create(config.spool.path, record)


def test_a_first_start_cut_off_after_the_slot_is_done_again(db, config):
    child = CHILDREN.Process(target=killed, args=(config, "slot.after_create=kill"))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    db.execute(insert(1, 1))
    with prepare_source(config, export_snapshot=True) as prepared:
        assert prepared.snapshot_name is not None
        assert prepared.consistent_point == confirmed(db)
    db.execute(insert(2, 2))
    run_capture(config, once=True)
    assert inserted(config) == numbers(2, 2)


@pytest.mark.pg(">= 14")  # the option messages
def test_an_intent_has_what_the_configuration_says_at_the_last_attempt(db, config):
    child = CHILDREN.Process(target=killed, args=(config, "slot.before_create=kill"))
    child.start()
    child.join()
    intent = Spool.open(config.spool.path).identity
    source = config.source.model_copy(update={"publications": ("other",), "messages": True})
    changed = config.model_copy(update={"source": source})
    with prepare_source(changed, export_snapshot=False) as prepared:
        identity = prepared.spool.identity
    assert identity.spool_id == intent.spool_id
    assert (intent.publications[0], intent.options["messages"]) == ("pgsluice", "false")
    assert identity.publications[0] == "other"
    assert identity.options["messages"] == "true"
    db.execute(insert(1, 2))
    run_capture(changed, once=True)
    assert inserted(changed) == numbers(1, 2)


@pytest.mark.pg(">= 14")  # pg_stat_replication_slots
def test_a_slot_made_for_us_is_taken_a_used_one_is_not(db, config, tmp_path):
    db.execute(
        "CREATE PUBLICATION pgsluice FOR TABLE t",
        f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')",
        insert(1, 3),
    )
    run_capture(config, once=True)
    assert inserted(config) == numbers(1, 3)
    # The server's statistics come a moment later.
    counted = f"SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = '{db.name}'"
    await_that(lambda: db.execute(counted)[0][0] > 0)
    with pytest.raises(SourceRefused, match="was used"):
        prepare_source(configure(db, tmp_path / "b"), export_snapshot=False)


@pytest.mark.pg(">= 14")  # pg_stat_replication_slots
def test_a_slot_that_another_spool_has_used_is_not_that_of_an_interrupted_start(
    db, config, tmp_path
):
    """It was made between the intent and the attempt to make one of this name."""
    child = CHILDREN.Process(target=killed, args=(config, "slot.before_create=kill"))
    child.start()
    child.join()
    other = configure(db, tmp_path / "other")
    run_capture(other, once=True)
    with running(other):
        await_that(lambda: phase(other) == "streaming")
        with pytest.raises(SlotInUse):
            prepare_source(config, export_snapshot=False)
        db.execute(insert(1, 3))
        await_that(lambda: inserted(other) == numbers(1, 3))
    counted = f"SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = '{db.name}'"
    await_that(lambda: db.execute(counted)[0][0] > 0)
    with pytest.raises(SourceRefused, match="was used"):
        prepare_source(config, export_snapshot=False)
    db.execute(insert(4, 6))
    run_capture(other, once=True)
    assert inserted(other) == numbers(1, 6)


@pytest.mark.pg(">= 11")  # pg_replication_slot_advance
def test_a_gap_is_refused(db, config):
    run_capture(config, once=True)
    db.execute(insert(1, 1))
    db.execute(
        f"SELECT pg_replication_slot_advance('{db.name}', pg_current_wal_flush_lsn())",
    )
    with pytest.raises(Gap, match="past the spool"):
        run_capture(config, once=True)


def test_a_lost_slot_is_refused(db, config):
    run_capture(config, once=True)
    db.execute(f"SELECT pg_drop_replication_slot('{db.name}')")
    with pytest.raises(SlotLost):
        run_capture(config, once=True)


def test_a_slot_in_use_is_refused(db, config):
    run_capture(config, once=True)
    with ReplicationConnection.connect(db.dsn) as other:
        options = PgoutputOptions(("pgsluice",), proto_version=1, streaming="off")
        other.start_replication(db.name, Lsn(0), options)
        db.execute(insert(1, 1))
        with pytest.raises(SlotInUse):
            run_capture(config, once=True, waits=Waits(stale_walsender_s=0.5))


def test_another_database_or_slot_is_refused(db, config, database):
    run_capture(config, once=True)
    other = database()
    with pytest.raises(ForeignSource, match="database"):
        run_capture(configure(db, config.spool.path, dsn=other.dsn), once=True)
    moved = config.model_copy(update={"source": SourceConfig(dsn=db.dsn, slot="another")})
    with pytest.raises(ForeignSource, match="belongs to slot"):
        run_capture(moved, once=True)


def test_nobody_there_is_an_error_after_a_while(tmp_path, caplog):
    source = SourceConfig(dsn="host=127.0.0.1 port=1", slot="s", connect_timeout_s=0.5)
    nowhere = Config(source=source, spool=SpoolConfig(path=tmp_path / "spool"))
    with pytest.raises(SourceUnreachable):
        run_capture(nowhere)
    [said] = caplog.messages
    assert "cannot reach the server" in said
    assert "refused\n  → pgsluice retries for 0.5 s (connect_timeout_s in [source]); check" in said


def test_a_server_that_does_not_answer_is_named_while_pgsluice_waits(caplog):
    def connect() -> str:
        await_that(lambda: caplog.messages)
        return "connected"

    assert connect_with_retry(connect, 30, silent_s=0.01) == "connected"
    [said] = caplog.messages
    assert said.startswith("the server has not answered for 0.01 s\n  → pgsluice waits for 30 s")


def test_two_captures_of_one_spool_are_refused(db, config):
    run_capture(config, once=True)
    with SpoolWriter(SpoolReader(config.spool.path).spool), pytest.raises(SpoolBusy):
        run_capture(config, once=True)


def test_a_second_database_is_told_another_slot_name_before_publications_are_made(
    db, config, database, tmp_path
):
    with prepare_source(config, export_snapshot=False):
        pass
    other = database()
    second = configure(other, tmp_path / "second")
    second = second.model_copy(
        update={"source": second.source.model_copy(update={"slot": config.source.slot})}
    )
    with (
        pytest.raises(ForeignSource, match=f"belongs to database {db.name}") as caught,
        prepare_source(second, export_snapshot=False),
    ):
        pass
    assert "drop" not in caught.value.hint
    assert other.execute("SELECT count(*) FROM pg_publication") == [(0,)]

    name = re.search('slot = "(.*)"', caught.value.hint)[1]
    renamed = second.model_copy(update={"source": second.source.model_copy(update={"slot": name})})
    with prepare_source(renamed, export_snapshot=False) as prepared:
        assert prepared.consistent_point > Lsn(0)
