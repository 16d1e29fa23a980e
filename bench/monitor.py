"""What the monitor costs with 5,000 tables: scrapes, the page's data, and answers from memory.

The pages are made at most every five seconds, so each figure is of a request five seconds after the
one before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from tests.monitor.test_http_server import free_port
from tests.support.spools import START, SpoolMaker

from bench.report import Line
from pgsluice.config import Config, MonitorConfig, parse_config
from pgsluice.lsn import Lsn
from pgsluice.monitor.metrics.counters import RunCounters
from pgsluice.monitor.metrics.http_server import EVERY_S
from pgsluice.monitor.metrics.serving import monitoring
from pgsluice.spool import Owner, RecordStore, SubscriptionRecord, TableRecord, TableState

TABLES = 5000
_REPEATS = 4
_CONFIG = """
[source]
dsn = "dbname=shop"
[spool]
path = "spool"
[[subscription]]
name = "lake"
sink = { type = "delta", path = "lake/{schema}/{table}" }
"""


def measure() -> Iterator[Line]:
    """CPU times of this process, which serves itself."""
    with TemporaryDirectory() as folder:
        config = parse_config(_CONFIG, Path(folder) / "shop.toml")
        _make_tables(config)
        yield _line(config, "/metrics", "≤ 50 ms", "a scrape")
        with_tables = config.model_copy(update={"monitor": MonitorConfig(tables=True)})
        yield _line(with_tables, "/metrics", "≤ 1 s", "a scrape with series of each table")
        yield _line(config, "/status.json", "", "the page's data")
        yield _line(config, "/metrics", "", "a scrape within 5 s of another one", every_s=0.0)


def _make_tables(config: Config) -> None:
    at = Lsn(START)
    spool = config.spool.path
    SpoolMaker(spool)
    tables = {
        oid: TableRecord("public", f"table_{oid}", TableState.READY, at, committed=at, rows=oid)
        for oid in range(1, TABLES + 1)
    }
    empty = SubscriptionRecord("lake", Owner.CONFIG, "current", "lake", at, at)
    RecordStore.create(spool, replace(empty, tables=tables))


def _line(config: Config, path: str, reach: str, what: str, every_s: float = EVERY_S) -> Line:
    port = free_port()
    limits = config.monitor.model_copy(update={"listen": f"127.0.0.1:{port}"})
    times = []
    with monitoring(config.model_copy(update={"monitor": limits}), RunCounters(["lake"])):
        for _ in range(_REPEATS + 1):
            began = time.process_time()
            with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                size = len(answer.read())
            times.append(time.process_time() - began)
            time.sleep(every_s)
    cpu_s = statistics.median(times[1:])
    return Line(
        f"{1000 * cpu_s:.0f} ms",
        reach,
        f"{what}, {TABLES:,} tables, CPU",
        f"{size / 2**20:.1f} MiB",
        f"one each {EVERY_S:.0f} s: {100 * cpu_s / EVERY_S:.1f} % of a core" if every_s else "",
    )
