"""Many tables in one batch, a batch of one row, and ``run --once`` with nothing to do.

A batch's time is the time from the commit at the source to the modification time of the last Delta
commit file that its tables get.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.live import running, stop
from bench.report import Line
from bench.stage import Shop, Stage, wait_for
from pgsluice.config import Config

TABLES = 200
_REPEATS = {1: 9, 10: 5, TABLES: 3}
"""How often so many tables are changed, after one time that does not count."""
_ONE_ROW_REPEATS = 25


def measure(stage: Stage) -> Iterator[Line]:
    """One table alone, then 200."""
    with running(stage, tables=1) as (shop, config, process):
        alone_s = median_s(stage, shop, config, changed=1, repeats=_ONE_ROW_REPEATS)
        yield Line(
            f"{1000 * alone_s:.0f} ms",
            "≤ 250 ms",
            "commit to visible of one row, nothing else changes, p50",
            f"{_ONE_ROW_REPEATS} rows",
        )
        stop(process)
        idle_alone_s = _idle_once_s(config)
    with running(stage, tables=TABLES) as (shop, config, process):
        for changed, repeats in _REPEATS.items():
            seconds = median_s(stage, shop, config, changed=changed, repeats=repeats)
            yield _tables_line(changed, seconds, alone_s)
        stop(process)
        idle_s = _idle_once_s(config)
    yield Line(
        f"{idle_s / idle_alone_s:.2f} x",
        "≤ 2 x",
        f"`run --once` with nothing to do, {TABLES} tables",
        f"{idle_s:.2f} s",
        f"one table {idle_alone_s:.2f} s",
    )


def median_s(stage: Stage, shop: Shop, config: Config, *, changed: int, repeats: int) -> float:
    """How long a transaction takes to the lake that changes a row of so many tables."""
    _batch_s(stage, shop, config, changed)
    return float(np.median([_batch_s(stage, shop, config, changed) for _ in range(repeats)]))


def _tables_line(changed: int, seconds: float, alone_s: float) -> Line:
    per_table_ms = 1000 * (seconds - alone_s) / changed
    return Line(
        f"{seconds:.2f} s",
        "≤ 4 s" if changed == TABLES else "",
        f"a transaction that changes {changed} of {TABLES} tables, p50",
        f"{per_table_ms:.0f} ms a table",
        f"one table alone {alone_s:.2f} s",
    )


def _batch_s(stage: Stage, shop: Shop, config: Config, changed: int) -> float:
    tables = [stage.lake(config, f"orders{number}") for number in range(1, changed + 1)]
    next_commits = [_newest_version(table) + 1 for table in tables]
    updates = [
        f"UPDATE orders{n} SET quantity = quantity + 1 WHERE id = 1" for n in range(1, changed + 1)
    ]
    shop.execute("BEGIN", *updates, "COMMIT")
    committed_at = time.time()
    commits = [
        _log_file(table, version) for table, version in zip(tables, next_commits, strict=True)
    ]
    wait_for(lambda: all(path.exists() for path in commits), "the changes are visible")
    visible_at = max(path.stat().st_mtime for path in commits)
    time.sleep(0.3)  # the batch ends, and the run waits for changes again
    return visible_at - committed_at


def _newest_version(table: Path) -> int:
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json"))


def _log_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def _idle_once_s(config: Config) -> float:
    """The better of two runs, after one that applies what is left."""
    command = [sys.executable, "-m", "pgsluice", "run", "--once", str(config.path)]
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.monotonic() - began)
    return min(seconds[1:])
