"""A large table is copied beside a stream: other tables' latency, the WAL that is kept, and memory.

A table is added to a run's publications while another one gets changes at a fixed rate. Besides,
rows are inserted that the subscription does not take, so that about 1 MB of WAL is written each
second. The largest of three sizes tells the latency and the WAL; all three tell the memory.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg

from bench.live import started
from bench.memory import Peaks, peak_bytes, watched
from bench.positions import Floats, committed, latencies
from bench.report import Line, rate
from bench.stage import Shop, Stage, wait_for
from pgsluice.config import Config, load_config
from pgsluice.errors import SpoolError
from pgsluice.spool import SpoolReader, find_record
from pgsluice.spool.layout import subscription_folder

SIZES = (1, 5, 20)
"""Times the stage's rows."""
LIVE_ROWS = 100_000
WARM_UP_S = 8
_SAMPLE_S = 0.2
_MOST_RETAINED_BYTES = 64 * 2**20
_UPDATE = rf"""
\set id random(1, {LIVE_ROWS})
UPDATE orders SET quantity = quantity + 1, changed_at = clock_timestamp() WHERE id = :id;
"""
_INSERT = "INSERT INTO notes VALUES (repeat(md5(random()::text), 250));"
_UPDATES_PER_S, _INSERTS_PER_S = 200, 100
_RETAINED = """
SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), restart_lsn)), 0)
FROM pg_replication_slots WHERE restart_lsn IS NOT NULL
"""


@dataclass
class Beside:
    """What was seen while a table was copied.

    Attributes:
        seconds: how long the copy took.
        without, during: the other table's latencies before and meanwhile.
        retained_bytes: the most WAL that a slot kept.
        wal_bytes_per_s: how much WAL was written.
        peaks: of memory, by kind of process.
    """

    rows: int
    seconds: float = 0.0
    without: Floats = field(default_factory=lambda: np.zeros(0))
    during: Floats = field(default_factory=lambda: np.zeros(0))
    retained_bytes: int = 0
    wal_bytes_per_s: float = 0.0
    peaks: Peaks = field(default_factory=dict)


def measure(stage: Stage) -> Iterator[Line]:
    """Latency and WAL beside the largest copy, memory of all three."""
    seen = [copy_beside(stage, times * stage.rows) for times in SIZES]
    largest = seen[-1]
    what = f"beside the copy of {largest.rows:,} rows, {largest.seconds:.0f} s"
    during, without = (
        float(np.median(seconds)) if len(seconds) else np.nan
        for seconds in (largest.during, largest.without)
    )
    yield Line(
        f"{during / without:.2f} x",
        "≤ 2 x",
        f"another table's commit to visible, p50, {what}",
        f"{during:.2f} s, p99 {np.percentile(largest.during, 99):.2f} s",
        f"{without:.2f} s without",
    )
    yield Line(
        f"{largest.retained_bytes / 2**20:.0f} MiB",
        f"< {_MOST_RETAINED_BYTES >> 20} MiB",
        f"WAL that any slot kept, {what}",
        f"{largest.wal_bytes_per_s / 1e6:.2f} MB/s of writes",
    )
    yield Line(
        rate(largest.rows / largest.seconds), "", "copy beside a stream", f"{largest.seconds:.0f} s"
    )
    for kind in sorted(kind for kind, peak in largest.peaks.items() if peak):
        # Small copies have no keeper.
        megabytes = [one.peaks[kind] / 1e6 for one in seen if one.peaks.get(kind)]
        yield Line(
            f"{megabytes[-1] / megabytes[0]:.2f} x",
            "flat",
            f"peak memory of {kind}, copies of {', '.join(f'{one.rows:,}' for one in seen)} rows",
            ", ".join(f"{size:.0f}" for size in megabytes) + " MB",
        )


def copy_beside(stage: Stage, rows: int) -> Beside:
    """Copy a table of so many rows beside a stream."""
    seen = Beside(rows)
    with stage.shop() as shop:
        shop.make_table("orders", LIVE_ROWS)
        shop.execute(
            "CREATE TABLE notes (body text)",
            "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
            "CREATE TABLE big (id bigint PRIMARY KEY, n int, v text)",
            f"INSERT INTO big SELECT i, i % 1000, md5(i::text) FROM generate_series(1, {rows}) i",
            # Else the copy is the first to read the rows, and with checksums that writes pages.
            "VACUUM ANALYZE",
            "CHECKPOINT",
        )
        config = _config(stage, shop)
        with started(config) as process, watched(process.pid) as seen.peaks:
            wait_for(lambda: _has_rows(config, "orders"), "orders is copied", 0.1)
            # Also beside the smaller copies: a worker's memory grows with its first batches.
            with _load(stage, shop, config) as began:
                time.sleep(stage.seconds)
                ended = time.time()
            seen.without = _latencies(stage, shop, config, began, ended)
            with _load(stage, shop, config) as began, _sampled(shop, config, seen):
                _publish(config, "orders", "big")
                process.send_signal(signal.SIGHUP)
                wait_for(lambda: _has_rows(config, "big"), "big is copied", 0.1)
                ended = time.time()
            seen.seconds = ended - began
            seen.during = _latencies(stage, shop, config, began, ended)
    return seen


def _config(stage: Stage, shop: Shop) -> Config:
    """A subscription with a publication of its own, in a file that can be changed."""
    config = stage.config(shop, "beside")
    assert config.path is not None
    text = config.path.read_text()
    text = text.replace('name = "lake"', 'name = "lake"\npublications = ["live"]')
    config.path.write_text(f'{text}\n[publications]\nfile = "publications.sql"\n')
    _publish(config, "orders")
    return load_config(config.path)


def _publish(config: Config, *tables: str) -> None:
    assert config.path is not None
    statement = f"CREATE PUBLICATION live FOR TABLE {', '.join(tables)}"
    config.path.with_name("publications.sql").write_text(statement)


def _has_rows(config: Config, table: str) -> bool:
    with suppress(SpoolError):  # no spool yet
        record = find_record(config.spool.path, "lake")
        return record is not None and any(
            one.name == table and one.is_active for one in record.tables.values()
        )
    return False


@contextmanager
def _load(stage: Stage, shop: Shop, config: Config) -> Iterator[float]:
    """Updates of orders and inserts into notes while the block runs; it gets the time at which
    they are warm."""
    assert config.path is not None
    programs: list[subprocess.Popen[bytes]] = []
    for name, text, per_s in (
        ("update", _UPDATE, _UPDATES_PER_S),
        ("insert", _INSERT, _INSERTS_PER_S),
    ):
        path = config.path.with_name(f"{name}.sql")
        path.write_text(text)
        programs.append(
            stage.program(
                "pgbench", "--no-vacuum", "--client=2", f"--rate={per_s}", "--time=3600",
                f"--file={path}", shop.dsn,
            )
        )  # fmt: skip
    time.sleep(WARM_UP_S)
    try:
        yield time.time()
    finally:
        for program in programs:
            program.terminate()
            program.wait()


def _latencies(stage: Stage, shop: Shop, config: Config, began: float, ended: float) -> Floats:
    """Of the transactions that committed between two times."""
    end = shop.end()
    shop.execute("UPDATE orders SET quantity = 0 WHERE id = 1")
    reader = SpoolReader(config.spool.path)
    wait_for(lambda: reader.position() > end, "the last changes received", 0.1)

    def is_applied() -> bool:
        record = find_record(config.spool.path, "lake")
        assert record is not None
        return all(t.applied_through >= end for t in record.tables.values() if t.name == "orders")

    wait_for(is_applied, "all changes applied", 0.1)
    source = committed(reader, reader.start())
    chosen = (source.at >= began) & (source.at <= ended)
    ((oid,),) = shop.execute("SELECT 'orders'::regclass::oid::bigint")
    return latencies(
        type(source)(source.positions[chosen], source.at[chosen], source.oids[chosen]),
        int(str(oid)),
        stage.lake(config, "orders"),
    )


@contextmanager
def _sampled(shop: Shop, config: Config, seen: Beside) -> Iterator[None]:
    """Watch the slots and the keeper of the snapshot while the block runs."""
    is_over = threading.Event()
    folder = subscription_folder(config.spool.path, "lake")

    def watch() -> None:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            while not is_over.wait(_SAMPLE_S):
                ((retained,),) = connection.execute(_RETAINED).fetchall()
                seen.retained_bytes = max(seen.retained_bytes, int(retained))
                for snapshot in folder.glob("copies*.snapshot"):
                    peak = max(seen.peaks.get("keeper", 0), _keeper_bytes(snapshot))
                    seen.peaks["keeper"] = peak

    watcher = threading.Thread(target=watch)
    first, began = shop.end(), time.monotonic()
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        seen.wal_bytes_per_s = (shop.end() - first) / (time.monotonic() - began)


def _keeper_bytes(snapshot: Path) -> int:
    with suppress(OSError, ValueError, KeyError):
        return peak_bytes(int(json.loads(snapshot.read_text())["pid"]))
    return 0
