"""One transaction with all rows: inserts, updates, and changes of all keys.

The time is from the commit at the source to the Delta commit; the memory is the peak of each kind
of process of the run until then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.live import running
from bench.memory import as_text, watched
from bench.report import Line, rate
from bench.stage import Stage
from bench.streams import wait_visible

TRANSACTIONS = {
    "inserts": """INSERT INTO orders1 SELECT id + {rows}, quantity, price, customer, is_paid, day,
                  changed_at FROM orders1""",
    "updates": "UPDATE orders1 SET quantity = quantity + 1 WHERE id <= {rows}",
    "changes of key": "UPDATE orders1 SET id = id + 2 * {rows} WHERE id <= {rows}",
}


def measure(stage: Stage) -> Iterator[Line]:
    """A line for each transaction; the table has as many rows before them."""
    with running(stage, tables=1) as (shop, config, process):
        for what, statement in TRANSACTIONS.items():
            with watched(process.pid) as peaks:
                shop.execute(statement.format(rows=stage.rows))
                committed_at = time.time()
                shop.end()
                visible_at = wait_visible(stage, config, "orders1")
            worker = peaks.get("worker", 0)
            yield Line(
                f"{worker / 1e6:.0f} MB",
                "≤ 1000 MB",
                f"a worker's memory, one transaction of {stage.rows:,} {what}",
                f"{rate(stage.rows / (visible_at - committed_at))} from its commit on",
                as_text(peaks),
            )
