"""What takes long, or ends, in one part of a run: the other parts go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from deltalake.exceptions import TableNotFoundError
from tests.pipeline.failing_spark import failing_spark
from tests.pipeline.own_publications import lake, publishing
from tests.support.databases import Database, MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.watched_imports import imported_by_threads, watching

from pgsluice.capture import read_health
from pgsluice.spool import TableState
from pgsluice.subscription.base.requests import request_copy


def waiting_copy(one: Pipeline, table: str) -> dict[str, str]:
    """The environment of a run whose copy of a table waits for :func:`stopped_copy`."""
    waits = one.folder / "copy waits"
    waits.touch()
    return {"PGSLUICE_FAILPOINTS": f"copy.reading public.{table}=wait:{waits}"}


@contextmanager
def stopped_copy(one: Pipeline, shop: Database, table: str) -> Iterator[None]:
    """The server's process that copies a table stands still while the block runs."""
    backends: list[Any] = []

    def copies() -> bool:
        backends[:] = shop.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            f" AND application_name = 'pgsluice copy public.{table}'"
        )
        return bool(backends)

    one.wait_until(copies, why=f"{table} is copied")
    ((backend,),) = backends
    os.kill(backend, signal.SIGSTOP)
    (one.folder / "copy waits").unlink()
    try:
        yield
    finally:
        os.kill(backend, signal.SIGCONT)


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.xdist_group("processes")
def test_a_long_copy_stops_nothing_else_and_a_dead_jvm_is_replaced(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE big (id int PRIMARY KEY, note text)",
        "INSERT INTO big SELECT id, repeat('x', 100) FROM generate_series(1, 200000) id",
        "CREATE TABLE small (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO small VALUES (1)",
        "INSERT INTO other VALUES (1)",
    )
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p FOR TABLE small", slow=None, quick=("p",))
    # Its JVM is killed twice while it starts.
    spark = str(failing_spark(one.folder / "failing spark"))
    imports = one.folder / "imports"
    process = one.start("run", SPARK_HOME=spark, **watching(imports), **waiting_copy(one, "big"))

    def holds(subscription: str, table: str, *ids: int) -> bool:
        with suppress(TableNotFoundError):
            return lake(one, subscription, table) == [(id_,) for id_ in ids]
        return False

    with stopped_copy(one, shop, "big"):
        one.wait_until(lambda: holds("quick", "small", 1))
        # Capture is looked after.
        health = read_health(one.spool)
        assert health is not None
        os.kill(health.pid, signal.SIGKILL)
        shop.execute("INSERT INTO small VALUES (2)")
        one.wait_until(lambda: holds("quick", "small", 1, 2))
        ended = f"capture (process {health.pid}) has ended by SIGKILL: pgsluice restarts it"
        assert ended in one.log()
        # Requests and the configuration of other subscriptions are taken up.
        ((oid, copied),) = one.record("quick").tables.items()
        request = request_copy(one.spool / "subscriptions" / "quick", oid)
        one.wait_until(
            lambda: one.record("quick").tables[oid].copy_number == copied.copy_number + 1
        )
        assert not request.exists()
        (one.folder / "publications.sql").write_text("CREATE PUBLICATION p FOR TABLE small, other")
        process.send_signal(signal.SIGHUP)
        one.wait_until(lambda: holds("quick", "other", 1))
        # Tables of the same subscription are copied, get changes, and a new one is found.
        one.wait_until(lambda: holds("slow", "small", 1, 2))
        states = {table.name: table.state for table in one.record("slow").tables.values()}
        assert states["big"] is TableState.DATA_COPY
        shop.execute("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
        one.wait_until(lambda: holds("slow", "late", 1))
        # What was read so far is not wanted any more, and the table is copied again at once.
        ((big, stopped),) = (
            (oid, table) for oid, table in one.record("slow").tables.items() if table.name == "big"
        )
        request = request_copy(one.spool / "subscriptions" / "slow", big)
        one.wait_until(lambda: not request.exists())
        one.wait_until(lambda: one.record("slow").tables[big].is_active)
    assert one.record("slow").tables[big].copy_number == stopped.copy_number + 1
    assert len(lake(one, "slow", "big")) == 200000
    (java,) = (child for child in psutil.Process(process.pid).children() if child.name() == "java")
    java.kill()
    shop.execute("INSERT INTO small VALUES (3)", "DELETE FROM big WHERE id > 199999")

    def is_applied() -> bool:
        last = max(row[0] for row in lake(one, "slow", "big"))
        return last == 199999 and all(holds(name, "small", 1, 2, 3) for name in ("slow", "quick"))

    # A JVM and its workers start.
    one.wait_until(is_applied)
    assert one.log().count("Spark's JVM ended while it started: pgsluice restarts Spark") == 2
    assert (
        f"Spark's JVM (process {java.pid}) has ended by SIGKILL: pgsluice restarts Spark"
        in one.log()
    )
    assert "Traceback" not in one.log(), one.log()
    one.stop()
    assert process.returncode == 143
    assert imported_by_threads(imports) == []
