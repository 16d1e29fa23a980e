"""The first ``pgsluice run``: until a table is copied, and until a change is in its target."""

from __future__ import annotations

import time

from bench.live import cpu_s, started
from bench.positions import commits_of
from bench.report import Line
from bench.stage import Stage, wait_for

TABLES = 8
ROWS = 1000


def measure(stage: Stage) -> list[Line]:
    """Both times, with the CPU time of all processes of the run until then."""
    with stage.shop() as shop:
        names = [f"orders{number}" for number in range(1, TABLES + 1)]
        for name in names:
            shop.make_table(name, ROWS)
        config = stage.config(shop, "start")
        began = time.time()
        with started(config) as process:

            def copied() -> int:
                assert process.poll() is None, "pgsluice run ended"
                return sum(bool(commits_of(stage.lake(config, name))) for name in names)

            first = wait_for(lambda: copied() > 0, "the first table")
            cpu_of_first = sum(cpu_s(process).values())
            wait_for(lambda: copied() == TABLES, "all tables")
            shop.execute(f"UPDATE {names[0]} SET quantity = 0 WHERE id = 1")
            target = stage.lake(config, names[0])
            changed = wait_for(lambda: len(commits_of(target)) > 1, "the change")
            cpu_of_change = sum(cpu_s(process).values())
    return [
        _line("the first copied table", first - began, cpu_of_first),
        _line("the first change in a target", changed - began, cpu_of_change),
    ]


def _line(until: str, wall_s: float, cpu: float) -> Line:
    what = f"from `pgsluice run` to {until}"
    return Line(
        f"{wall_s:.1f} s", "", what, f"{cpu:.1f} CPU s", f"{TABLES} tables of {ROWS:,} rows"
    )
