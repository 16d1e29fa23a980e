"""One transaction with all rows: inserts, updates, and changes of all keys; and one with some rows
that have values of 10 kB: inserts, and updates that do not send these values.

The time is from the commit at the source to the Delta commit; the memory is the peak of each kind
of process of the run until then.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from bench.live import running
from bench.memory import Peaks, as_text, watched
from bench.report import Line, rate
from bench.stage import Shop, Stage, wait_for
from bench.streams import wait_visible
from pgsluice.config import Config
from pgsluice.spool import SpoolReader

TRANSACTIONS = {
    "inserts": """INSERT INTO orders1 SELECT id + {rows}, quantity, price, customer, is_paid, day,
                  changed_at FROM orders1""",
    "updates": "UPDATE orders1 SET quantity = quantity + 1 WHERE id <= {rows}",
    "changes of key": "UPDATE orders1 SET id = id + 2 * {rows} WHERE id <= {rows}",
    "inserts of 10 kB": """INSERT INTO orders1 (id, quantity, customer)
                           SELECT -i, 0, repeat(md5(i::text), 312)
                           FROM generate_series(1, {rows}) i""",
    "updates beside 10 kB": "UPDATE orders1 SET quantity = quantity + 1 WHERE id < 0",
}
SHARES = {"inserts of 10 kB": 50, "updates beside 10 kB": 50}
"""Of which transactions have only one of so many rows."""


def measure(stage: Stage) -> Iterator[Line]:
    """A line for each transaction; the table has as many rows before them."""
    with running(stage, tables=1) as (shop, config, process):
        shop.execute("ALTER TABLE orders1 ALTER customer SET STORAGE EXTERNAL")
        for what in TRANSACTIONS:
            rows = stage.rows // SHARES.get(what, 1)
            peaks, seconds = applied(stage, shop, config, process, what, rows)
            yield Line(
                f"{peaks.get('worker', 0) / 1e6:.0f} MB",
                "≤ 1000 MB",
                f"a worker's memory, one transaction of {rows:,} {what}",
                f"{rate(rows / seconds)} from its commit on",
                as_text(peaks),
            )


def applied(
    stage: Stage,
    shop: Shop,
    config: Config,
    process: subprocess.Popen[bytes],
    what: str,
    rows: int,
) -> tuple[Peaks, float]:
    """One of the transactions, applied by a run; the peaks of memory so far, and the seconds from
    its commit on."""
    with watched(process.pid) as peaks:
        shop.execute(TRANSACTIONS[what].format(rows=rows))
        seconds = _visible_after_s(stage, shop, config)
    return peaks, seconds


def _visible_after_s(stage: Stage, shop: Shop, config: Config) -> float:
    """How long the transaction that has just been committed takes to the lake."""
    committed_at = time.time()
    end, reader = shop.end(), SpoolReader(config.spool.path)
    wait_for(lambda: reader.frontier() >= end, "the spool has the transaction", 0.1)
    return wait_visible(stage, config, "orders1") - committed_at
