"""Faults of a run that a real Prometheus watches: each raises its own alerts, and no others.

The times of the rules are divided by :data:`SHORTER`; everything else of them is as users get it.
Meanwhile, every ten seconds, there is a fault that is over too soon for any alert.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.monitor.test_http_server import free_port
from tests.soak.brief_faults import BriefFaults
from tests.soak.memory import Memory
from tests.soak.prometheus import Prometheus, scraping
from tests.soak.report import Report
from tests.support.databases import Database, fresh_database
from tests.support.object_stores import ObjectStore
from tests.support.oracle import assert_equal
from tests.support.pgbench import kill, processes_of
from tests.support.pipeline import BUCKET, MakePipeline, Pipeline
from tests.support.store_proxy import StoreProxy, store_proxy
from tests.support.waiting import HANGS_S

from pgsluice.embedded import EmbeddedServer
from pgsluice.verification import DeltaRows

pytestmark = pytest.mark.soak

SHORTER = 15
"""Five minutes of a rule are twenty seconds: a run starts within them."""
MINUTES = float(os.environ.get("PGSLUICE_ALERT_MINUTES", "20"))
"""Each kind of fault comes at least once, also if that takes longer."""
ENDING = frozenset({"capture killed", "run killed", "run ended, capture apart"})
"""They end a process, so they come once, at the start: growth shows in a process that lives on."""
SPOOL_BYTES = 58 * 2**20
_OPEN_ROWS = 52_000
"""Of about a kilobyte each: capture has three parts of them in the spool, 48 MiB."""
_TABLES = ("t", "u")
_SETTINGS = {"fsync": "off", "max_wal_size": "4GB", "logical_decoding_work_mem": "64kB"}
_READ_AT = "pgsluice_status_timestamp_seconds"
_SECOND = """
[[subscription]]
name = "second"
on_unrepresentable = "fail"
sink = {{ type = "delta", path = "{path}/{{schema}}/{{table}}", storage_options = {{ {options} }} }}

[monitor]
listen = "127.0.0.1:{port}"
max_lag_s = 10
max_slot_bytes = "100 MiB"
tables = true
"""


class Load(threading.Thread):
    """Writes with one session; each key changes once between two barriers, so that the rows of its
    changes and of the targets are the same."""

    def __init__(self, shop: Database, seed: int) -> None:
        super().__init__(daemon=True)
        self._shop, self._dice = shop, random.Random(seed)
        self._may_write, self._ended = threading.Event(), threading.Event()
        self._is_quiet = threading.Event()
        self._next, self._old = 1_000_000, list[int]()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        while not self._ended.is_set():
            if not self._may_write.wait(0.1):
                self._is_quiet.set()
                continue
            self._is_quiet.clear()
            try:
                with self._shop.connect() as connection:
                    while self._may_write.is_set() and not self._ended.is_set():
                        self._write(connection)
                        time.sleep(0.05)
            except psycopg.OperationalError:  # the server is away
                self._ended.wait(0.2)

    def _write(self, connection: object) -> None:
        new = range(self._next, self._next + self._dice.randint(1, 20))
        changed = [self._old.pop() for _ in range(min(len(self._old), self._dice.randint(0, 6)))]
        gone, changed = changed[:2], changed[2:]
        with connection.transaction():  # type: ignore[attr-defined]
            execute = connection.execute  # type: ignore[attr-defined]
            execute("INSERT INTO t (id, v) SELECT unnest(%s::int[]), 0", [list(new)])
            execute("UPDATE t SET v = v + 1 WHERE id = ANY(%s)", [changed])
            execute("DELETE FROM t WHERE id = ANY(%s)", [gone])
        self._next = new.stop
        self.counts += Counter(insert=len(new), update=len(changed), delete=len(gone))

    def go_on(self) -> None:
        """Write, also to the rows from before."""
        ((rows,),) = self._shop.execute("SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM t")
        self._old = list(rows)
        self._dice.shuffle(self._old)
        self.counts.clear()
        self._may_write.set()

    def rest(self) -> None:
        """Write nothing until :meth:`go_on`."""
        self._may_write.clear()
        assert self._is_quiet.wait(HANGS_S)

    def end(self) -> None:
        self._ended.set()
        self.join()


class Stage:
    """The run, its server, its store and its Prometheus, with the faults that they can have."""

    def __init__(
        self,
        one: Pipeline,
        proxy: StoreProxy,
        watched: Prometheus,
        load: Load,
        dice: random.Random,
        brief: BriefFaults,
        second: Callable[[str], DeltaRows],
    ) -> None:
        self.one, self.proxy, self.watched, self.load = one, proxy, watched, load
        self.brief, self.second = brief, second
        self.shop, self.dice = one.database, dice
        self._meeting = ""
        self.memory = {"run": Memory(), "capture": Memory()}
        self.faults: dict[str, tuple[set[str], Callable[[], Iterator[None]]]] = {
            "capture killed": ({"PgsluiceProcessesLost"}, lambda: self._killed("capture")),
            "worker killed": ({"PgsluiceProcessesLost"}, lambda: self._killed("worker")),
            "run killed": ({"PgsluiceDown"}, self._run_killed),
            "run ended, capture apart": ({"PgsluiceNoRun", "PgsluiceLag"}, self._capture_alone),
            "server stopped": ({"PgsluiceCaptureNotStreaming"}, self._server_stopped),
            "store refuses": ({"PgsluiceTableFailing", "PgsluiceLag"}, self._store_refuses),
            "value that does not fit": ({"PgsluiceTableParked"}, self._parked),
            "row gone from a target": ({"PgsluiceSkippedRows"}, self._skipped),
            "long transaction": ({"PgsluiceSlotKeepsWal"}, self._long_transaction),
            "little WAL allowed": ({"PgsluiceSlotAtRisk"}, self._little_wal),
            "spool fills": ({"PgsluiceSpoolFilling"}, self._spool_fills),
        }
        if os.environ.get("PGSLUICE_SOAK_ENGINE") == "local":
            del self.faults["worker killed"]  # its tasks run in the run's own process

    def _killed(self, what: str) -> Iterator[None]:
        self.one.wait_until(lambda: kill(self.one, what, self.dice), why=f"a {what} is killed")
        yield

    def _run_killed(self) -> Iterator[None]:
        assert kill(self.one, "driver", self.dice)
        self.one.processes.clear()
        yield
        self.one.start()

    def _capture_alone(self) -> Iterator[None]:
        self.one.stop()
        self.one.start("capture")
        yield
        self.one.stop()
        self.one.start()

    def _server_stopped(self) -> Iterator[None]:
        self.shop.server.stop("immediate")
        yield
        self.shop.server.start()

    def _store_refuses(self) -> Iterator[None]:
        self.proxy.refusal = (503, "SlowDown")
        yield
        self.proxy.refusal = None

    def _parked(self) -> Iterator[None]:
        self.shop.execute("INSERT INTO u VALUES (1, 'infinity')")
        yield
        self.shop.execute("DELETE FROM u WHERE id = 1")
        done = self.one.command("copy", str(self.one.path), "u", "--subscription", "second")
        assert done.returncode == 0, done.stderr

    def _skipped(self) -> Iterator[None]:
        self.shop.execute("INSERT INTO u VALUES (2, '2026-01-01')")
        self.one.wait_applied()
        self.one.delta("u").delete("id = 2")
        self.shop.execute("DELETE FROM u WHERE id = 2")
        yield

    def _long_transaction(self) -> Iterator[None]:
        beside = Database(self.shop.server, "postgres")
        beside.execute("CREATE TABLE IF NOT EXISTS unsent (v text)")
        with beside.connect() as writer:
            writer.execute("BEGIN")
            writer.execute("INSERT INTO unsent VALUES ('x')")
            beside.execute(
                "INSERT INTO unsent SELECT repeat('x', 1000) FROM generate_series(1, 150000)"
            )
            yield
            writer.execute("ROLLBACK")
        beside.execute("TRUNCATE unsent", "CHECKPOINT")

    def _spool_fills(self) -> Iterator[None]:
        """An open transaction, whose rows capture receives, needs most of the spool's limit."""
        with self.shop.connect() as writer:
            writer.execute("BEGIN")
            writer.execute(
                "INSERT INTO t SELECT -i, 0, repeat(md5(i::text), 30)"
                " FROM generate_series(1, %s) i",
                [_OPEN_ROWS],
            )
            yield
            writer.execute("ROLLBACK")

    def _little_wal(self) -> Iterator[None]:
        self._set("'900MB'")
        yield
        self._set("-1")

    def _set(self, value: str) -> None:
        self.shop.execute(
            f"ALTER SYSTEM SET max_slot_wal_keep_size = {value}", "SELECT pg_reload_conf()"
        )

    def draw(self) -> Iterator[str]:
        """Names of faults without an end: all of them, in an order that is drawn, then again and
        again those that let the run and capture live."""
        ending = sorted(ENDING)
        yield from self.dice.sample(ending, len(ending))
        lasting = sorted(self.faults.keys() - ENDING)
        while True:
            yield from self.dice.sample(lasting, len(lasting))

    def meet(self, name: str) -> set[str]:
        """A fault from its beginning until its alerts are resolved; returns those that fired."""
        expected, begin = self.faults[name]
        began = time.monotonic()
        fault = begin()
        self.brief.end()
        self._meeting = name
        next(fault)
        self.await_that(lambda: expected <= self.watched.firing(), f"{name}: {expected} fire")
        self.brief.end()
        next(fault, None)
        self._meeting = ""
        self.await_that(lambda: not self.watched.firing(), f"{name}: its alerts are resolved")
        self.brief.end()
        return self.watched.firing(over=f"{int(time.monotonic() - began)}s")

    def await_that(self, what: Callable[[], bool], why: str) -> None:
        def comes() -> bool:
            # The server sends an open transaction again to a new session, which needs its room.
            without = "sessions cut" if self._meeting == "spool fills" else ""
            self.brief.advance(without=without)
            return what()

        self.one.wait_until(comes, why=lambda: f"{why}; firing: {self.watched.firing()}")

    def lose_slot(self) -> set[str]:
        """The slot is dropped while nothing runs; a run watches what capture has found.

        Nothing resolves it but a new spool.
        """
        expected = {"PgsluiceSlotMissing", "PgsluiceCaptureNotStreaming"}
        self.brief.end()
        self.one.stop()
        self.shop.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        assert self.one.start("capture").wait(HANGS_S) == 3
        self.one.start("run", "--without-capture")
        self.await_that(lambda: self.watched.firing() == expected, f"{expected} fire")
        return expected

    def compare(self, before: Counter[str] | None) -> Counter[str]:
        """At rest, the scraped figures are those of the source and of the lake.

        Args:
            before: the counters of the same run when the load began; None: it is another run.

        Returns:
            the counters, for the next time.
        """
        self.one.wait_applied()
        at_rest = time.time()
        self.one.wait_until(
            lambda: (self.watched.value(_READ_AT) or 0) > at_rest,
            why="the pages are made again",
        )
        server = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots"
        value, load = self.watched.value, self.load.counts
        for name in ("lake", "second"):
            of_one = f'{{subscription="{name}"'
            self._await_value(f"pgsluice_subscription_lag_seconds{of_one}}}", lambda: 0)
            self._await_value(f'pgsluice_subscription_tables{of_one},state="ready"}}', lambda: 2)
        self._await_value(
            "pgsluice_slot_retained_wal_bytes", lambda: float(self.shop.execute(server)[0][0])
        )
        now: Counter[str] = Counter()
        for name in ("lake", "second"):
            of_one = f'{{subscription="{name}"'
            for action in ("insert", "update", "delete"):
                of_rows = f'{of_one},table="t",action="{action}"}}'
                series = f"pgsluice_table_rows_total{of_rows}"
                if before is not None:
                    expected = before[series] + load[action]
                    self._await_value(series, lambda expected=expected: expected)
                now[series] = int(value(series) or 0)
        self.one.assert_equal(*_TABLES)
        with self.shop.connect() as connection:
            for table in _TABLES:
                assert_equal(connection, f"public.{table}", self.second(table))
        for process, memory in self.memory.items():
            series = f'pgsluice_process_resident_memory_bytes{{process="{process}"}}'
            memory.add(_pids_of(self.one, process), (value(series) or 0) / 2**20)
        return now

    def _await_value(self, expression: str, expected: Callable[[], float]) -> None:
        self.one.wait_until(
            lambda: (self.watched.value(expression) or 0) == expected(),
            why=lambda: f"{expression} is {expected()}: {self.watched.value(expression)}",
        )


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_each_fault_raises_its_alerts_and_no_others(
    turn: int,
    s3_store: ObjectStore,
    pipeline: MakePipeline,
    tmp_path: Path,
    seed: int,
    report: Report,
) -> None:
    """At each barrier, the scraped figures are those of the source and of the lake."""
    disk = shutil.disk_usage(tmp_path)
    assert disk.free > 0.15 * disk.total, "the disk itself raises PgsluiceSpoolFilling"
    dice = random.Random(seed)
    title = f"alerts of a real Prometheus, tables on a disk and in ministack ({turn} of 3)"
    with (
        report.row(title, seed) as row,
        EmbeddedServer(18, settings=_SETTINGS) as server,
        fresh_database(server) as shop,
        store_proxy(s3_store.endpoint) as proxy,
    ):
        shop.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v int, note text)",
            "CREATE TABLE u (id int PRIMARY KEY, d date)",
            "INSERT INTO t (id, v) SELECT i, 0 FROM generate_series(1, 5000) i",
        )
        place = f"s3://{BUCKET}/{uuid.uuid4()}"
        options = ", ".join(f'{k} = "{v}"' for k, v in s3_store.at(proxy.endpoint).items())
        port = free_port()
        one = pipeline(shop)
        one.subscription_options = 'foreign_writes = "allow"'
        one.write(
            _SECOND.format(path=place, options=options, port=port),
            spool=f"max_bytes = {SPOOL_BYTES}",
        )
        one.start()
        one.wait_until(one.spool.exists, why="the run works")
        one.wait_applied()
        load = Load(shop, seed)
        load.start()
        brief = BriefFaults(one, proxy, port, random.Random(seed + 1))
        with scraping(tmp_path, f"127.0.0.1:{port}", SHORTER) as watched:
            stage = Stage(
                one,
                proxy,
                watched,
                load,
                dice,
                brief,
                lambda table: DeltaRows(f"{place}/public/{table}", options=s3_store.options),
            )
            stage.await_that(lambda: not watched.firing(), "no alert fires")
            counters, pid = stage.compare(None), _run_of(one)
            began, met = time.monotonic(), list[str]()
            for name in stage.draw():
                if len(met) >= len(stage.faults) and time.monotonic() - began > MINUTES * 60:
                    break
                load.go_on()
                fired = stage.meet(name)
                assert fired == stage.faults[name][0], (name, fired)
                load.rest()
                is_same = _run_of(one) == pid and name != "server stopped"
                counters, pid = stage.compare(counters if is_same else None), _run_of(one)
                met.append(name)
            minutes = (time.monotonic() - began) / 60
            load.end()
            for memory in stage.memory.values():
                memory.assert_steady()
            alerts = stage.lose_slot().union(*(alerts for alerts, _ in stage.faults.values()))
            brief.end()
        row["figures"] = (
            f"{minutes:.0f} minutes of load, {len(met) + 1} faults of {len(stage.faults) + 1} kinds"
            f" and {brief.met.total()} brief ones of {len(brief.met)}, two subscriptions"
        )
        row["shown"] = (
            f"{len(alerts)} of 12 alerts: each fault raised its own and no others, and they were"
            " resolved; the brief ones raised none; at each barrier, lag, states, the slot's WAL"
            " and the rows by action were those of the source; memory in the longest life: "
            + "; ".join(f"{process} {memory}" for process, memory in stage.memory.items())
        )


def _run_of(one: Pipeline) -> list[int]:
    return _pids_of(one, "run")


def _pids_of(one: Pipeline, process: str) -> list[int]:
    role = "driver" if process == "run" else process
    return [each.pid for each in processes_of(one, role)]
