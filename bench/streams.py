"""A backlog of one slot: read by pg_recvlogical, by capture, and by a run into Delta.

All read the same changes; each has its own slot, created before the changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from bench import decode
from bench.positions import changes_received, commits_of
from bench.report import Line, rate, ratio
from bench.stage import Shop, Stage, wait_for
from pgsluice.capture import CaptureProcess, prepare_source
from pgsluice.config import Config
from pgsluice.lsn import Lsn
from pgsluice.spool import Spool, SpoolReader
from pgsluice.subscription.running.run import run

ROUNDS = 2
"""The best of this many runs counts, for pg_recvlogical and for capture."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The changes of a backlog.

    Attributes:
        name: for messages.
        rows_before: does the table have its rows when the slots are created?
        write: makes the changes.
    """

    name: str
    rows_before: bool
    write: Callable[[Shop, int], None]


WORKLOADS = {
    "one": Workload("one transaction", False, lambda shop, rows: shop.insert("orders", rows)),
    "hundreds": Workload(
        "transactions of 100",
        False,
        lambda shop, rows: shop.insert_in_transactions("orders", rows, 100),
    ),
    "updates": Workload(
        "updates",
        True,
        lambda shop, rows: void(shop.execute("UPDATE orders SET quantity = quantity + 1")),
    ),
}


def void(_: object) -> None:
    """For a lambda that returns nothing."""


def measure(stage: Stage, name: str) -> list[Line]:
    """All lines of one workload."""
    workload, rows = WORKLOADS[name], stage.rows
    with stage.shop() as shop:
        shop.make_table("orders", rows if workload.rows_before else 0)
        captures = [stage.config(shop, f"capture{number}") for number in range(ROUNDS)]
        for config in captures:
            prepare_source(config, export_snapshot=False).close()
        for number in range(ROUNDS):
            slot = f"{shop.name}_recv{number}"
            shop.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        backlog = stage.config(shop, "backlog")
        run(backlog, once=True)
        workload.write(shop, rows)
        end = shop.end()
        received, captured, cores = 0.0, 0.0, 0.0
        for number, config in enumerate(captures):
            received = max(received, pg_recvlogical(stage, shop, number, config, end))
            speed, cpu_s = capture(stage, shop, config)
            if speed > captured:
                captured, cores = speed, cpu_s / rows
        applied = into_delta(stage, shop, backlog)
        lines = [
            Line(
                ratio(captured, received),
                "≥ 1.5 x",
                f"capture into the durable spool, {workload.name}",
                rate(captured),
                f"pg_recvlogical {rate(received)}",
            ),
            Line(
                f"{cores * received:.2f} cores",
                "< 0.5 cores",
                f"capture's CPU at pg_recvlogical's rate, {workload.name}",
                f"{cores * 1e6:.2f} µs a row",
            ),
            Line(
                ratio(applied, received),
                "≥ 0.6 x",
                f"backlog into Delta `current`, {workload.name}",
                rate(applied),
                f"pg_recvlogical {rate(received)}",
            ),
        ]
        if name == "one":
            decoded = decoding(captures[0])
            lines.append(
                Line(
                    ratio(decoded, received),
                    "≥ 15 x",
                    "decoding 7 typed columns, one core",
                    rate(decoded),
                    f"pg_recvlogical {rate(received)}",
                )
            )
        return lines


def pg_recvlogical(stage: Stage, shop: Shop, number: int, config: Config, end: Lsn) -> float:
    """Rows a second that pg_recvlogical writes to /dev/null, with capture's options."""
    identity = Spool.open(config.spool.path).identity
    options = {**identity.options, "publication_names": ",".join(identity.publications)}
    wanted = ("proto_version", "publication_names", "streaming")
    arguments = [
        f"--option={key}={options[key]}"
        for key in wanted
        if key in options and options[key] != "off"
    ]
    slot = f"{shop.name}_recv{number}"
    program = stage.program(
        "pg_recvlogical", f"--dbname={shop.dsn}", f"--slot={slot}", "--start", "--no-loop",
        "--file=/dev/null", f"--endpos={end}", *arguments,
    )  # fmt: skip
    began = shop.wait_active(slot)
    return stage.rows / (stage.finish(program) - began)


def capture(stage: Stage, shop: Shop, config: Config) -> tuple[float, float]:
    """Rows a second that capture makes durable, and the CPU seconds that it needs."""
    with CaptureProcess(config) as process:
        began = shop.wait_active(config.source.slot)
        assert process.pid is not None
        child = psutil.Process(process.pid)
        before = child.cpu_times()
        ended = wait_received(config, stage.rows, process.check)
        after = child.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return stage.rows / (ended - began), cpu_s


def wait_received(config: Config, rows: int, check: Callable[[], object] = lambda: None) -> float:
    """Wait until the spool has that many changes, and return when it had them.

    Args:
        config: its spool.
        rows: the number of changes.
        check: raises an error if they will never come.
    """
    reader = SpoolReader(config.spool.path)

    def received() -> bool:
        check()
        return changes_received(reader) >= rows

    return wait_for(received, f"{rows} changes in {config.spool.path}", 0.02)


def into_delta(stage: Stage, shop: Shop, config: Config) -> float:
    """Rows a second that a run with a warm session brings from the slot into Delta."""
    stop = threading.Event()
    times: list[float] = []
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            times.append(shop.wait_active(config.source.slot))
            wait_received(config, stage.rows)
            times.append(wait_visible(stage, config, "orders"))
        except BaseException as error:
            failures.append(error)
        finally:
            stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run(config, stop=stop)
    finally:
        watcher.join()
    if failures:
        raise failures[0]
    began, visible = times
    return stage.rows / (visible - began)


def wait_visible(stage: Stage, config: Config, table: str) -> float:
    """Wait until the target has all that the spool has now, and return when it had it."""
    position = int(SpoolReader(config.spool.path).position())
    lake, known = stage.lake(config, table), dict[str, tuple[int, float]]()

    def reached() -> bool:
        return any(reached >= position for reached, _ in commits_of(lake, known))

    wait_for(reached, f"{table} in Delta at {Lsn(position)}")
    return min(when for reached, when in commits_of(lake, known) if reached >= position)


def decoding(config: Config) -> float:
    """Rows of the spool that one core decodes in a second."""
    reader = SpoolReader(config.spool.path)
    views = [view for info in reader.segments(reader.start()) for view in reader.views(info)]
    oids = {oid for info in reader.all_segments() for oid in info.header.counts.relations}
    return decode.rate(views, oids)
