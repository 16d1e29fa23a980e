"""``pgsluice run`` as users start it, while pgbench writes: latency, weight of a table, idling.

A transaction's latency is the time from its commit at the source to the Delta commit that made it
visible. The first seconds of the load, in which everything warms up, do not count.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
from tests.monitor.test_http_server import free_port

from bench.positions import Floats, committed, latencies
from bench.report import Line
from bench.stage import Bucket, Shop, Stage, wait_for
from pgsluice.config import Config
from pgsluice.errors import SpoolError
from pgsluice.monitor.metrics.http_server import EVERY_S
from pgsluice.spool import SpoolReader, TableState, find_record

TRANSACTIONS_PER_S = 500
TABLES = 10
FEW_ROWS = 1000
"""Of a table that counts as empty."""
WARM_UP_S = 8
IDLE_S = 10
_UPDATE = r"""
\set table random(1, {tables})
\set id random(1, {rows})
UPDATE orders:table SET quantity = quantity + 1, changed_at = clock_timestamp() WHERE id = :id;
"""
_INSERT = r"""
\set table random(1, {tables})
INSERT INTO orders:table VALUES (nextval('orders_id'), 1, 9.99, 'a new customer', false,
                                 current_date, clock_timestamp());
"""


def measure(stage: Stage, *, ten: bool, idle: bool, latency: bool, weight: bool) -> list[Line]:
    """Latency of one table, idling after it, latency of an empty table and of ten tables."""
    lines = []
    one = np.zeros(0)
    if latency or ten or idle or weight:
        with running(stage, tables=1) as (shop, config, process):
            if latency or ten or weight:
                one = load(stage, shop, config, tables=1, rows=stage.rows)
                lines += _latency(stage, one, "one table")
            if idle:
                lines.append(_idle(config, process))
    if idle:
        port = free_port()
        monitor = f'[monitor]\nlisten = "127.0.0.1:{port}"\ntables = true'
        with running(stage, tables=TABLES, rows=FEW_ROWS, more=monitor) as (_, config, process):
            lines.append(_idle(config, process, port))
    if weight:
        with running(stage, tables=1, rows=FEW_ROWS) as (shop, config, _):
            few = load(stage, shop, config, tables=1, rows=FEW_ROWS)
        lines.append(_weight(stage, one, few))
    if ten:
        with running(stage, tables=TABLES) as (shop, config, _):
            many = load(stage, shop, config, tables=TABLES, rows=stage.rows)
        lines += _ten(many, one)
    return lines


def _latency(stage: Stage, seconds: Floats, what: str) -> list[Line]:
    load = f"{TRANSACTIONS_PER_S} transactions/s, {what} of {stage.rows:,} rows"
    return [
        Line(
            f"{np.percentile(seconds, share):.2f} s",
            reach,
            f"commit to visible in Delta `current`, p{share}",
            f"{len(seconds):,} transactions",
            load,
        )
        for share, reach in ((50, "≤ 0.8 s"), (99, "≤ 2 s"))
    ]


def _weight(stage: Stage, one: Floats, few: Floats) -> Line:
    large_s, few_s = np.median(one), np.median(few)
    return Line(
        f"{large_s / few_s:.2f} x",
        "≤ 1.2 x",
        f"a table of {stage.rows:,} rows beside one of {FEW_ROWS:,}, p50",
        f"{large_s:.2f} s",
        f"{few_s:.2f} s",
    )


def _ten(many: Floats, one: Floats) -> list[Line]:
    return [
        Line(
            f"{np.percentile(many, share) / np.percentile(one, share):.2f} x",
            reach,
            f"ten tables changing at once, p{share}",
            f"{np.percentile(many, share):.2f} s",
            f"one table {np.percentile(one, share):.2f} s",
        )
        for share, reach in ((50, "≤ 3 x"), (99, "≤ 3 x"))
    ]


@contextmanager
def running(
    stage: Stage,
    tables: int,
    rows: int | None = None,
    bucket: Bucket | None = None,
    more: str = "",
) -> Iterator[tuple[Shop, Config, subprocess.Popen[bytes]]]:
    """A run whose tables are copied and ready.

    Args:
        rows: of all tables together; None: the stage's.
        bucket: where the targets lie, without a pause between batches; None: on the disk.
        more: lines at the end of the configuration.
    """
    rows = stage.rows if rows is None else rows
    with stage.shop() as shop:
        for number in range(1, tables + 1):
            shop.make_table(f"orders{number}", rows // tables)
        shop.execute(f"CREATE SEQUENCE orders_id START {rows + 1}")
        options = f"apply_interval_s = 0\n{more}" if bucket is not None else more
        config = stage.config(shop, "live", options=options, bucket=bucket)
        with started(config) as process:
            wait_for(lambda: _is_ready(config, process, tables), "the run is ready", 0.1)
            yield shop, config, process


@contextmanager
def started(config: Config) -> Iterator[subprocess.Popen[bytes]]:
    """A run for the block; what it prints goes to a file beside the configuration's."""
    with _log_path(config).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgsluice", "run", str(config.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        stop(process)


def _log_path(config: Config) -> Path:
    assert config.path is not None
    return config.path.with_name("run.log")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a run in order, if it has not ended."""
    process.send_signal(signal.SIGTERM)
    process.wait(120)


def _is_ready(config: Config, process: subprocess.Popen[bytes], tables: int) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"pgsluice run ended: {_log_path(config).read_text()[-2000:]}")
    record = None
    with suppress(SpoolError):  # no spool yet
        record = find_record(config.spool.place, "lake")
    if record is None or len(record.tables) < tables:
        return False
    return all(one.state in (TableState.COPIED, TableState.READY) for one in record.tables.values())


def load(stage: Stage, shop: Shop, config: Config, tables: int, rows: int) -> Floats:
    """Transactions at a fixed rate for some seconds; each one's latency, warmed up."""
    assert config.path is not None
    scripts = []
    for name, text, weight in (("update", _UPDATE, 4), ("insert", _INSERT, 1)):
        path = config.path.with_name(f"{name}.sql")
        path.write_text(text.format(tables=tables, rows=rows // tables))
        scripts.append(f"--file={path}@{weight}")
    reader = SpoolReader(config.spool.place)
    before = reader.position()
    began = time.time()
    program = stage.program(
        "pgbench", "--no-vacuum", "--client=4", f"--rate={TRANSACTIONS_PER_S}",
        f"--time={WARM_UP_S + stage.seconds}", *scripts, shop.dsn,
    )  # fmt: skip
    stage.finish(program)
    _wait_applied(stage, shop, config, tables)
    source = committed(reader, before)
    warm = source.at >= began + WARM_UP_S
    found = []
    for number in range(1, tables + 1):
        ((oid,),) = shop.execute(f"SELECT 'orders{number}'::regclass::oid::bigint")
        chosen = type(source)(source.positions[warm], source.at[warm], source.oids[warm])
        found.append(latencies(chosen, int(str(oid)), stage.lake(config, f"orders{number}")))
    return np.concatenate(found)


def _wait_applied(stage: Stage, shop: Shop, config: Config, tables: int) -> None:
    end = shop.end()
    reader = SpoolReader(config.spool.place)
    # One last change of each table tells that all before it are there.
    shop.execute(*(f"UPDATE orders{n} SET quantity = 0 WHERE id = 1" for n in range(1, tables + 1)))
    wait_for(lambda: reader.position() > end, "the last changes received", 0.1)

    def applied() -> bool:
        record = find_record(config.spool.place, "lake")
        return record is not None and all(
            one.applied_through >= end for one in record.tables.values()
        )

    wait_for(applied, "all changes applied", 0.1)


def _idle(config: Config, process: subprocess.Popen[bytes], port: int | None = None) -> Line:
    """The whole run's CPU with nothing to do: Spark's, its workers' and capture's.

    Args:
        port: of the monitor, which is scraped each five seconds; None: it is off.
    """
    time.sleep(IDLE_S / 2)  # the last batch's echo
    before = cpu_s(process)
    for _ in range(round(IDLE_S / EVERY_S)):
        time.sleep(EVERY_S)
        if port is not None:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()
    after = cpu_s(process)
    used = sum(after[pid] - before.get(pid, 0.0) for pid in after)
    watched = "" if port is None else f", {TABLES} tables, monitor scraped each {EVERY_S:.0f} s"
    return Line(
        f"{100 * used / IDLE_S:.1f} %",
        "< 3 %",
        f"idle, of one core{watched}",
        f"{used:.2f} CPU s in {IDLE_S} s",
    )


def cpu_s(process: subprocess.Popen[bytes]) -> dict[int, float]:
    """The CPU time of a run's processes in seconds, by process; of those that still exist."""
    root = psutil.Process(process.pid)
    found = {}
    for one in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            found[one.pid] = times.user + times.system
    return found
