"""Run the benchmarks and print their table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from bench import (
    beside,
    change_log,
    copying,
    decoders,
    filtered,
    filters,
    growth,
    large,
    live,
    looks,
    merge,
    monitor,
    start,
    store,
    streams,
    tables,
)
from bench.report import Line, setting, table, write
from bench.stage import Stage

LIVE = ("latency", "weight", "idle", "ten")
WITH_SESSION = (*streams.WORKLOADS, "filtered", "changelog")
NAMES = (
    *WITH_SESSION,
    "copy",
    "decoder",
    "filters",
    "growth",
    "large",
    "looks",
    "merge",
    "monitor",
    "start",
    "tables",
    *LIVE,
)
ALONE = ("beside", "copy-cluster", "store", "store-latency")
"""What takes too long for a run of everything, needs Go, or is a part of another one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write if that was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"NAME: {', '.join(NAMES)}; and {', '.join(ALONE)}, which are not part of a run "
        "of everything.",
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each workload")
    parser.add_argument("--seconds", type=int, default=30, help="how long latency is measured")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=(*NAMES, *ALONE),
        help="only this; may be repeated",
    )
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    parser.add_argument("--draw", action="store_true", help="put the growth curves into the docs")
    chosen = parser.parse_args(arguments)
    if chosen.write and chosen.only:
        parser.error("--write needs the whole table, without --only")
    names = set(chosen.only or NAMES)
    with Stage(chosen.rows, chosen.seconds) as stage:
        where = setting(chosen.rows, stage.server.version)
        lines = measure(stage, names, draw=chosen.draw)
    print(f"\n{where}\n\n{table(lines)}")
    if chosen.write:
        write(lines, where)
    return 0


def measure(stage: Stage, names: set[str], *, draw: bool) -> list[Line]:
    """The lines of the chosen benchmarks; each is told as soon as it is known."""
    lines: list[Line] = []

    def take(more: Iterable[Line]) -> None:
        for line in more:
            print("  ".join(filter(None, line.cells())), flush=True)
            lines.append(line)

    if names & set(WITH_SESSION):
        with stage.warm_session():
            for name in streams.WORKLOADS:
                if name in names:
                    take(streams.measure(stage, name))
            if "filtered" in names:
                take(filtered.measure(stage))
            if "changelog" in names:
                take(change_log.measure(stage))
    if "beside" in names:
        take(beside.measure(stage))
    if names & {"copy", "copy-cluster"}:
        take(copying.measure(stage, all_of_it="copy" in names))
    if "decoder" in names:
        take(decoders.measure())
    if "filters" in names:
        take(filters.measure(stage.rows))
    if "growth" in names:
        take(growth.measure(stage, draw=draw))
    if "large" in names:
        take(large.measure(stage))
    if "looks" in names:
        take(looks.measure(stage))
    if "merge" in names:
        take(merge.measure(stage.rows))
    if "monitor" in names:
        take(monitor.measure())
    if "start" in names:
        take(start.measure(stage))
    if names & {"store", "store-latency"}:
        take(store.measure(stage, all_of_it="store" in names))
    if "tables" in names:
        take(tables.measure(stage))
    take(
        live.measure(
            stage,
            latency="latency" in names,
            weight="weight" in names,
            ten="ten" in names,
            idle="idle" in names,
        )
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
