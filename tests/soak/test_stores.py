"""Tables in object stores: chaos, kills and large transactions while the store fails.

A proxy before the store loses answers after the store has done what it was asked for, refuses,
hangs and is slow, every few seconds. versitygw itself is killed twice, too; ministack forgets
everything when it ends. ``PGSLUICE_STORE_SECONDS`` is how long a test writes (60), and with
``PGSLUICE_SOAK_SPOOL=store`` the spool lies in the store, too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.pipeline.test_large import arm_tasks
from tests.soak.chaos.fire import fight, make_tables
from tests.soak.chaos.modes import MODES
from tests.soak.report import SPOOL_IN_STORE, Report
from tests.soak.spark_turns import assert_all_read, overwrite_by_spark, spark_name
from tests.support.databases import Database, MakeDatabase
from tests.support.delta_spark import delta_spark
from tests.support.large_transaction import replicate
from tests.support.object_stores import ObjectStore, ministack
from tests.support.pgbench import TABLES, await_until, fire, initialise, kill, start_again
from tests.support.pipeline import BUCKET, MakePipeline, Pipeline
from tests.support.store_faults import (
    CLIENT,
    Faults,
    RestartedStore,
    faults,
    maintained_a_day_later,
)
from tests.support.store_proxy import store_proxy

from pgsluice.demo.shop import TABLES as SHOP_TABLES
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import TablesUnfinished
from pgsluice.sinks.delta.config import DeltaSinkConfig

pytestmark = pytest.mark.soak

SECONDS = int(os.environ.get("PGSLUICE_STORE_SECONDS", "60"))
KILLS = 6
RESTARTS = 2
AWAY_S = 3.0
COPIED_SCALE = 20
LARGE_ROWS = 500_000
_SETTINGS = {"fsync": "off", "max_prepared_transactions": "20", "autovacuum": "off"}
_STORES = pytest.mark.parametrize("kind", ["ministack", "versitygw"])


@dataclass
class Troubled:
    """A store, and what goes wrong with it.

    Attributes:
        restarts: how often its server was killed.
    """

    store: ObjectStore
    faults: Faults
    endpoint: str
    restarts: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def have(self, one: Pipeline) -> None:
        """Have a pipeline's targets there."""
        one.have_store(self.store, self.endpoint)
        if SPOOL_IN_STORE:
            one.have_spool_in_store(self.store, self.endpoint)
        one.storage_options |= CLIENT
        one.write()

    def figures(self) -> str:
        """For the page."""
        restarts = f"; {self.restarts} SIGKILL to the store" if self.restarts else ""
        return f"faults: {self.faults.counted()}{restarts}"


@contextmanager
def troubled(kind: str, folder: Path, seed: int, seconds: float = SECONDS) -> Iterator[Troubled]:
    """A store with a proxy before it, and faults; versitygw is killed twice within the seconds."""
    with (
        running(kind, folder) as (store, restarted),
        store_proxy(store.endpoint) as proxy,
        faults(proxy, seed) as thread,
    ):
        it = Troubled(store, thread, proxy.endpoint)
        killer = threading.Thread(target=_restart, args=(it, restarted, seed, seconds))
        killer.start()
        try:
            yield it
        finally:
            it.ended.set()
            killer.join()


@contextmanager
def running(kind: str, folder: Path) -> Iterator[tuple[ObjectStore, RestartedStore | None]]:
    """One of the servers; one that can be killed, or None."""
    if kind == "ministack":
        with ministack() as store:
            store.make_bucket(BUCKET)
            yield store, None
    else:
        server = RestartedStore(folder / "versitygw")
        try:
            yield server.store, server
        finally:
            server.close()


def _restart(it: Troubled, server: RestartedStore | None, seed: int, seconds: float) -> None:
    dice = random.Random(f"{seed} restarts")
    while server is not None and it.restarts < RESTARTS:
        if it.ended.wait(dice.uniform(0.2, 0.4) * seconds):
            return
        server.restart(AWAY_S, it.ended)
        it.restarts += 1
    it.ended.wait()  # the server would end with this thread


def assert_tidy(one: Pipeline, it: Troubled, monkeypatch: pytest.MonkeyPatch) -> int:
    """Every object of a table is named by a version after a day's maintenance; how many tables."""
    records = [table for table in one.record().tables.values() if table.is_active]
    tables = [f"{table.namespace}/{table.name}" for table in records]
    unnamed = maintained_a_day_later(one.lake_uri, it.store, tables, monkeypatch)
    assert not unnamed, f"objects that no version names: {unnamed}"
    return len(tables)


@pytest.mark.parametrize("mode", ["data", "schema"])
@_STORES
def test_chaos(
    kind: str,
    mode: str,
    pipeline: MakePipeline,
    tmp_path: Path,
    seed: int,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        report.row(f"chaos, {MODES[mode].title}, tables in {kind}", seed) as row,
        EmbeddedServer(18, settings=_SETTINGS) as server,
        troubled(kind, tmp_path, seed) as it,
    ):
        shop = Database(server, "postgres")
        make_tables(shop)
        one = pipeline(shop, source="two_phase = true")
        it.have(one)
        with MODES[mode].prepare(one):
            fought = fight(one, seconds=SECONDS, kills=KILLS, seed=seed, mode=MODES[mode])
        row["figures"] = (
            f"{SECONDS} s; {fought.transactions} transactions, {fought.changes} schema changes,"
            f" {fought.verifications}; SIGKILL to {len(fought.killed)};"
            f" {it.figures()}; all applied within {fought.settled_s:.0f} s"
        )
        assert not fought.wrong, fought.complaint(seed)
        one.stop()
        it.faults.stop()
        assert_tidy(one, it, monkeypatch)
        row["shown"] = f"{fought.tables} tables equal row for row; no object that no version names"


@pytest.fixture
def replicated(
    kind: str, pipeline: MakePipeline, tmp_path: Path, seed: int
) -> Iterator[Callable[[int], tuple[Pipeline, Troubled]]]:
    """``replicated(scale)``: a pipeline of pgbench's tables to a store with faults."""
    with EmbeddedServer(18) as server, troubled(kind, tmp_path, seed) as it:

        def make(scale: int) -> tuple[Pipeline, Troubled]:
            shop = Database(server, "postgres")
            initialise(shop, scale)
            one = pipeline(shop)
            it.have(one)
            return one, it

        yield make


@_STORES
def test_pgbench_under_fire(
    kind: str,
    replicated: Callable[[int], tuple[Pipeline, Troubled]],
    seed: int,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with report.row(f"pgbench under fire, tables in {kind}", seed) as row:
        one, it = replicated(5)
        killed = fire(one, seconds=SECONDS, kills=KILLS, seed=seed)
        it.faults.stop()
        assert_tidy(one, it, monkeypatch)
        row["figures"] = (
            f"TPC-B, scale 5, 4 clients, {SECONDS} s; SIGKILL to "
            + ", ".join(f"{name} {killed.count(name)}x" for name in sorted(set(killed)))
            + f"; {it.figures()}"
        )
        row["shown"] = "4 tables equal row for row; no object that no version names"


@_STORES
def test_copies_under_fire(
    kind: str,
    replicated: Callable[[int], tuple[Pipeline, Troubled]],
    seed: int,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with report.row(f"copies under fire, tables in {kind}", seed) as row:
        one, it = replicated(COPIED_SCALE)
        killed = kill_while_copying(one, random.Random(seed))
        began = time.monotonic()
        one.wait_applied(timeout_s=900, meanwhile=lambda: start_again(one))
        took_s = time.monotonic() - began
        one.assert_equal(*TABLES)
        one.stop()
        it.faults.stop()
        assert_tidy(one, it, monkeypatch)
        row["figures"] = (
            f"{COPIED_SCALE * 100_000:,} rows; SIGKILL to {', '.join(killed)}; {it.figures()};"
            f" copied within {took_s:.0f} s after the last"
        )
        row["shown"] = "4 tables equal row for row; no object that no version names"


def kill_while_copying(one: Pipeline, dice: random.Random) -> list[str]:
    """Kill processes of a run while its tables are copied."""
    killed = []
    one.start()
    for _ in range(KILLS):
        await_until(time.monotonic() + dice.uniform(2, SECONDS / KILLS))
        victim = dice.choice(("driver", "worker", "jvm"))
        if kill(one, victim, dice):
            killed.append(victim)
        start_again(one)
    return killed


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize(
    ("kind", "merge"),
    [("ministack", "on_read"), ("ministack", "on_write"), ("versitygw", "on_read")],
)
def test_spark_writes_in_turns(
    kind: str,
    merge: str,
    database: MakeDatabase,
    pipeline: MakePipeline,
    tmp_path: Path,
    seed: int,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark checks a commit's name, then we commit, then Spark writes. A run notices each of it."""
    monkeypatch.setattr(DeltaSinkConfig, "confirms_after_s", 1.0)
    with (
        report.row(f"Spark and pgsluice write in turns, {merge}, tables in {kind}", seed) as row,
        running(kind, tmp_path) as (store, _),
        store_proxy(store.endpoint) as proxy,
        delta_spark(tmp_path, store.at(proxy.endpoint)) as spark,
    ):
        one = pipeline(shop := database())
        one.sink_options = f', merge = "{merge}"'
        one.have_store(store)
        one.write("apply_interval_s = 0", spool='retention = "60s"')
        shop.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int)",
            "INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i",
        )
        one.once()
        copies, name = one.table("t").copy_number, spark_name(one, "t")
        properties = f"ALTER TABLE {name} SET TBLPROPERTIES ('pgsluice.test' = '1')"
        harmless = f"OPTIMIZE {name}" if merge == "on_read" else properties

        def change(number: int) -> None:
            shop.execute(
                f"UPDATE t SET n = {number} WHERE id % 7 = {number % 7}",
                f"INSERT INTO t VALUES ({1000 + number}, {number})",
            )
            one.once()

        def applied_without_help() -> bool:
            shop.execute("UPDATE t SET n = n + 1 WHERE id = 3")
            try:
                one.once()
            except TablesUnfinished:
                assert "WRITE since pgsluice's last commit" in (one.table("t").error or "")
                one.copy("t")
                one.once()
                return False
            return True

        change(1)
        spark.sql(f"OPTIMIZE {name}")  # nobody is in between
        change(2)
        assert_all_read(one, spark, "t")
        overwrite_by_spark(spark, harmless, proxy, lambda: change(3))
        change(4)
        # A compaction of ours may have followed the overwritten merge.
        is_copied = one.table("t").copy_number > copies
        assert is_copied or "applies the changes since then again" in caplog.text
        assert_all_read(one, spark, "t")
        copies = one.table("t").copy_number
        spark.sql(f"OPTIMIZE {name}")
        change(5)
        overwrite_by_spark(spark, harmless, proxy, lambda: (change(6), change(7)))
        change(8)
        assert one.table("t").copy_number > copies
        assert_all_read(one, spark, "t")
        append = f"INSERT INTO {name} VALUES (-1, -1)"
        spark.sql(append)
        assert not applied_without_help()
        assert_all_read(one, spark, "t")
        overwrite_by_spark(spark, append, proxy, lambda: change(9))
        applied_without_help()
        assert_all_read(one, spark, "t")
        row["figures"] = (
            "OPTIMIZE, SET TBLPROPERTIES and INSERT of Spark with Delta's jar, between batches,"
            " and over our commits, between its check of a name and its write"
        )
        row["shown"] = (
            "overwritten commits applied again, or copied if another followed; parked after"
            " INSERT, and equal after `pgsluice copy`; deltalake, polars, DuckDB and Spark read the"
            " source's rows"
        )


def test_the_demo_ends_with_its_proof(tmp_path: Path) -> None:
    demo = [sys.executable, "-m", "pgsluice", "demo", "--store", "--dir", str(tmp_path / "shop")]
    done = subprocess.run(demo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"All {len(SHOP_TABLES)} tables are equal." in done.stdout


@_STORES
@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_a_large_transaction(
    kind: str,
    merge: str,
    pipeline: MakePipeline,
    tmp_path: Path,
    seed: int,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks share it; one of their workers is killed when its share is staged."""
    large = "pgsluice.subscription.batches.tasks.large_batch"
    monkeypatch.setattr(f"{large}.LARGE_BYTES", 2**23)
    monkeypatch.setattr(f"{large}.PIECE_BYTES", 2**22)
    with (
        report.row(f"a large transaction in pieces, {merge}, tables in {kind}", seed) as row,
        EmbeddedServer(18) as server,
        troubled(kind, tmp_path, seed, seconds=20) as it,
    ):
        one = pipeline(Database(server, "postgres"))
        one.sink_options = f', merge = "{merge}"'
        it.have(one)
        marker = tmp_path / "killed"
        arm_tasks(f"batch.staged=kill:{marker}", monkeypatch)
        replicate(one, LARGE_ROWS, segment_bytes=2**20)
        assert marker.exists()
        it.faults.stop()
        assert_tidy(one, it, monkeypatch)
        row["figures"] = f"{LARGE_ROWS:,} rows; SIGKILL to a worker; {it.figures()}"
        row["shown"] = "equal row for row; no object that no version names"
