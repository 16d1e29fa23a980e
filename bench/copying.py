"""The initial copy of one table, against one connection's COPY to nowhere."""

from __future__ import annotations

import threading
import time

from bench.positions import commits_of
from bench.report import Line, rate, ratio
from bench.stage import Shop, Stage, wait_for
from pgsluice.config import Config
from pgsluice.spool import TableState, find_record
from pgsluice.subscription.run import run

ROUNDS = 2


def measure(stage: Stage) -> list[Line]:
    """The copy's rate, the best of some, and COPY's."""
    with stage.shop() as shop:
        shop.make_table("orders", stage.rows)
        plain = copied = 0.0
        for number in range(ROUNDS):
            plain = max(plain, copy_to_nowhere(stage, shop))
            copied = max(copied, copy_to_delta(stage, stage.config(shop, f"copy{number}")))
    return [
        Line(
            ratio(copied, plain),
            "≥ 0.4 x",
            "initial copy of one table to Delta",
            rate(copied),
            f"one connection's COPY {rate(plain)}",
        )
    ]


def copy_to_nowhere(stage: Stage, shop: Shop) -> float:
    """Rows a second of ``COPY ... TO STDOUT`` over TCP, written to /dev/null."""
    began = time.time()
    program = stage.program("psql", "-XAtqc", "COPY orders TO STDOUT", shop.dsn)
    return stage.rows / (stage.finish(program) - began)


def copy_to_delta(stage: Stage, config: Config) -> float:
    """Rows a second from the decision to copy to the Delta commit, Spark's job included."""
    began: list[float] = []
    given_up = threading.Event()

    def copies() -> bool:
        record = find_record(config.spool.path, "lake")
        return given_up.is_set() or (
            record is not None
            and any(one.state is not TableState.INITIALISE for one in record.tables.values())
        )

    watcher = threading.Thread(
        target=lambda: began.append(wait_for(copies, "the copy begins", 0.005))
    )
    watcher.start()
    try:
        run(config, once=True)
    finally:
        given_up.set()
        watcher.join()
    (_, visible), *_ = commits_of(stage.lake(config, "orders"))
    return stage.rows / (visible - began[0])
