"""The sink stands still while the source writes: the spool keeps, the slot does not.

In this order: the slot holds no WAL while the spool grows; at the size limit parked tables are
let go, then disabled subscriptions, and then nothing more is acknowledged while the connection
lives; with room again every table is equal.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.capture import read_health
from pgsluice.events import CapturePhase
from pgsluice.spool import Spool, SpoolReader

pytestmark = [
    pytest.mark.usefixtures("spark"),
    pytest.mark.pg(">= 12"),  # wal_sender_timeout of one database's connections
]

OTHER = """
[[subscription]]
name = "other"
enabled = {enabled}
sink = {{ type = "delta", path = "other/{{schema}}/{{table}}" }}
"""
LIMIT = 6 * 2**20
SPOOL = f"max_bytes = {LIMIT}\nsegment_bytes = {128 * 1024}"
MEGABYTE = """INSERT INTO t (v) SELECT string_agg(md5(random()::text), '')
    FROM generate_series(1, 32 * 1000) n GROUP BY n % 1000"""
WAL_SENDER_TIMEOUT_S = 6
FLAT_BYTES = 3 * 2**19
"""What the slot may retain: less than two of the test's writes."""


@pytest.mark.soak  # make soak AREA=long
def test_the_sink_stopped_while_the_source_writes(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        f"ALTER DATABASE {shop.name} SET wal_sender_timeout = '{WAL_SENDER_TIMEOUT_S}s'",
        "CREATE TABLE t (id serial PRIMARY KEY, v text)",
        "CREATE TABLE bad (id int PRIMARY KEY, d date)",
        "INSERT INTO t (v) VALUES ('before')",
        "INSERT INTO bad VALUES (1, NULL)",
    )
    one = pipeline(shop)
    one.subscription_options = 'on_unrepresentable = "fail"'
    one.write(OTHER.format(enabled="true"), spool=SPOOL)
    one.once()
    one.assert_equal("t", "bad", lake="other")
    one.write(OTHER.format(enabled="false"), spool=SPOOL)
    shop.execute("INSERT INTO bad VALUES (2, 'infinity')", "INSERT INTO t (v) VALUES ('parked')")
    with pytest.raises(Exception, match="1 table is parked"):
        one.once()
    assert one.table("bad").state == "p"

    capture = one.start("capture")
    _grows_while_the_slot_stays_flat(one)
    _fills_up_and_lives(one)
    capture.terminate()
    assert capture.wait(HANGS_S) == 143
    one.processes.clear()

    # With room again: one run empties the spool in turns, and copies what was let go.
    shop.execute("DELETE FROM bad WHERE id = 2", "INSERT INTO bad VALUES (3, '2024-01-01')")
    one.once()
    one.assert_equal("t", "bad")
    assert one.table("bad").copy_number == 2
    one.write(OTHER.format(enabled="true"), spool=SPOOL)
    one.once()
    one.assert_equal("t", "bad", lake="other")
    assert {table.copy_number for table in one.record("other").tables.values()} == {2}
    assert _released(one) == {}
    _taken_out_it_holds_nothing(one)


def _grows_while_the_slot_stays_flat(one: Pipeline) -> None:
    shop = one.database
    size = 0
    for _ in range(3):
        shop.execute(MEGABYTE)
        ((written,),) = shop.execute("SELECT pg_current_wal_flush_lsn()")
        one.wait_until(lambda at=written: _is_acknowledged(shop, at), why="acknowledged")
        one.wait_until(lambda: _retained(shop) < FLAT_BYTES, why="the slot let go of its WAL")
        before, size = size, _size(one)
        assert size > before + 500_000
    assert _released(one) == {}


def _fills_up_and_lives(one: Pipeline) -> None:
    shop = one.database
    for _ in range(12):
        shop.execute(MEGABYTE)
        ((at,),) = shop.execute("SELECT pg_current_wal_flush_lsn()")
        one.wait_until(
            lambda at=at: _is_full(one) or _is_acknowledged(shop, at), why="acknowledged, or full"
        )
        if _is_full(one):
            break
    assert _is_full(one)
    bad = str(next(oid for oid, t in one.record().tables.items() if t.name == "bad"))
    # In the order in which they were let go; the running subscription is never among them.
    assert [(name, list(what)) for name, what in _released(one).items()] == [
        ("lake", [bad]),
        ("other", ["*"]),
    ]
    durable = str(SpoolReader(one.spool).frontier())
    one.wait_until(lambda: _walsender(shop)["flushed"] == durable, why="acknowledged to its end")
    walsender = _walsender(shop)
    shop.execute(MEGABYTE)
    heard = walsender["heard"]
    one.wait_until(
        lambda: _walsender(shop)["heard"] - heard > WAL_SENDER_TIMEOUT_S,
        why="status goes on, past the server's timeout",
    )
    now = _walsender(shop)
    assert (now["pid"], now["flushed"]) == (walsender["pid"], walsender["flushed"])
    assert _size(one) < 1.5 * LIMIT


def _taken_out_it_holds_nothing(one: Pipeline) -> None:
    stood = SpoolReader(one.spool).start()
    one.write(spool=SPOOL)
    one.database.execute("INSERT INTO t (v) VALUES ('without')")
    one.once()
    one.assert_equal("t", "bad")
    one.start("capture")
    one.wait_until(lambda: SpoolReader(one.spool).start() > stood, why="let go")
    record = one.record("other")
    assert record.position < one.record().position, "it has not gone on"
    one.stop()


def _is_full(one: Pipeline) -> bool:
    health = read_health(one.spool)
    return health is not None and health.phase is CapturePhase.WAITING


def _released(one: Pipeline) -> dict[str, dict[str, str]]:
    return Spool.open(one.spool).released()


def _size(one: Pipeline) -> int:
    size = 0
    for path in one.spool.rglob("*.arrow"):
        with suppress(FileNotFoundError):  # capture has just let it go
            size += path.stat().st_size
    return size


def _is_acknowledged(shop: Database, at: object) -> bool:
    ((done,),) = shop.execute(
        f"SELECT confirmed_flush_lsn >= '{at}' FROM pg_replication_slots"
        f" WHERE slot_name = '{shop.name}'"
    )
    return bool(done)


def _retained(shop: Database) -> int:
    """What the slot keeps the server from removing; a checkpoint says what is running."""
    ((size,),) = shop.execute(
        "CHECKPOINT",
        "SELECT pg_current_wal_flush_lsn() - restart_lsn FROM pg_replication_slots"
        f" WHERE slot_name = '{shop.name}'",
    )
    return int(size)


def _walsender(shop: Database) -> dict[str, Any]:
    ((pid, flushed, heard),) = shop.execute(
        "SELECT pid, flush_lsn::text, extract(epoch FROM reply_time)::float"
        " FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid"
        f" WHERE slot_name = '{shop.name}'"
    )
    return {"pid": pid, "flushed": flushed, "heard": heard}
