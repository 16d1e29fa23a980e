"""Asked to stop before anything flows: a run ends soon, quietly, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import stat
import threading

import psutil
import pytest
from tests.support.databases import MakeDatabase
from tests.support.hostile_server import Action, Asked, HostileProxy
from tests.support.pipeline import MakePipeline
from tests.support.waiting import HANGS_S, await_that

from pgsluice.subscription.running.run import run
from pgsluice.system.processes import is_running


@pytest.mark.usefixtures("spark")
def test_while_the_slot_waits_for_an_open_transaction(
    pipeline: MakePipeline, database: MakeDatabase
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    one = pipeline(shop)
    stop = threading.Event()
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event = 'transactionid'"
        " AND datname = current_database()"
    )
    with shop.connect() as writer, writer.transaction():
        writer.execute("INSERT INTO t VALUES (1)")
        thread = threading.Thread(target=run, args=(one.config,), kwargs={"stop": stop})
        thread.start()
        one.wait_until(lambda: shop.execute(waits) == [(1,)], why="the slot's creation waits")
        stop.set()
        thread.join(HANGS_S)
        assert not thread.is_alive()
        assert shop.execute(
            f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{shop.name}'"
        ) == [(0,)]
    # What is there is nobody else's business, also the folders on the way to a file.
    folders = [one.spool, *(path for path in one.spool.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    one.once()
    one.assert_equal("t")


@pytest.mark.xdist_group("processes")
def test_while_spark_starts(pipeline: MakePipeline, database: MakeDatabase) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    one = pipeline(shop)
    process = one.start()
    # The log is made right before the JVM is.
    one.wait_until((one.spool / "spark.log").exists, why="Spark starts")
    started: list[psutil.Process] = []

    def has_started() -> bool:
        started[:] = psutil.Process(process.pid).children(recursive=True)
        return bool(started)

    one.wait_until(has_started, why="a script of Spark runs")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    await_that(
        lambda: not any(is_running(one.pid) for one in started),
        "what starts the JVM has ended, and the JVM with it",
    )
    assert "WARNING" not in one.log()
    assert "Traceback" not in one.log()


@pytest.mark.xdist_group("processes")
def test_while_a_look_and_a_copy_have_no_answer(
    pipeline: MakePipeline, database: MakeDatabase
) -> None:
    """One subscription's first look is never answered, and another one's copy is not."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {shop.name} FOR TABLE t"
    )
    one = pipeline(
        shop,
        extra='[[subscription]]\nname = "other"\nsink = { type = "delta", path = "other/{table}" }',
    )
    look = Asked("SET lock_timeout", Action.SILENCE, is_walsender=False)
    copy = Asked("SELECT FROM ONLY", Action.SILENCE, is_walsender=False)
    with (
        HostileProxy(shop.server.port, copy) as behind,
        HostileProxy(behind.port, look) as proxy,
    ):
        text = one.path.read_text()
        dsn, through = json.dumps(shop.dsn), json.dumps(proxy.dsn(shop.dsn))
        one.path.write_text(text.replace(dsn, through))
        process = one.start()
        one.wait_until(lambda: look.has_acted and copy.has_acted, why="both hang")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert "Traceback" not in one.log()
