"""Run a whole configuration: capture in a child process; batches and copies as Spark tasks.

The order at the start (contracts: spool, capture, initial copy): publications, slot, spool. Then
each subscription registers durably, so that the spool keeps the changes that it needs. Then capture
streams. Then tables are copied, the first ones under the slot's own snapshot, while batches run.
Spark's JVM starts during all this, and during the import of most of pgsluice's modules. A crash at
any point is safe: the next start does what is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import ConfigError, PgsluiceError, TablesUnfinished
from pgsluice.events import MetricsEvent, RunStep
from pgsluice.lsn import Lsn
from pgsluice.shown import without_table
from pgsluice.spark.installed import refuse_connect, require_spark
from pgsluice.spark.jobs.shared_folders import shared_folders
from pgsluice.spark.session.java import require_java
from pgsluice.spark.session.loading import load_pyspark
from pgsluice.spark.session.master import DEFAULT_MASTER, is_local
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.spool.active_runs import ActiveRun
from pgsluice.spool.lock import subscription_lock
from pgsluice.subscription.base.waits import WAITS, Waits
from pgsluice.subscription.running.session import RunSession, restarting

if TYPE_CHECKING:
    from pgsluice.spool import RecordStore, SubscriptionRecord

_COMMAND_S = 2.0
"""How long a command may hold the lock of a subscription that is not active, in seconds."""


def _ignore(_: MetricsEvent) -> None:
    return None


def run(
    config: Config,
    *,
    once: bool = False,
    captures: bool = True,
    names: Sequence[str] | None = None,
    report: Callable[[MetricsEvent], None] | None = None,
    stop: threading.Event | None = None,
    reread: Callable[[], Config | None] = lambda: None,
    owns_process: bool = False,
    waits: Waits = WAITS,
) -> None:
    """Replicate until ``stop`` is set; with ``once``, up to the source's position at the start.

    Args:
        captures: receive, too; otherwise another process does (``pgsluice capture``), perhaps on
            another machine. Not with ``once``.
        names: the subscriptions to run; None: all that are enabled.
        reread: polled; returns a configuration when its settings are to be taken over
            (:mod:`pgsluice.config.in_force`). If it raises ConfigError, the settings stay.
        owns_process: nothing else uses Spark or pandas in this process, which makes the start
            faster.

    Raises:
        ConfigError: no subscription, no Java, an unsuitable Spark, or refused publications.
        SourceRefused: the source is unsuitable, or not the one of the spool.
        SourceUnreachable: no connection before the first START_REPLICATION.
        SinkError: a target as a whole cannot be used.
        SparkFailed: Spark's JVM ended or Spark's jobs failed, again and again.
        TablesUnfinished: with ``once``: a table is parked, or has not reached the position.
    """
    if once and not captures:
        raise ConfigError(
            "--once and --without-capture exclude each other: --once needs the capture process, "
            "which --without-capture does not start",
            hint="remove one of the two options",
        )
    chosen = _chosen(config, names)
    require_spark()
    refuse_connect(config.spark)
    require_java()
    stop = stop if stop is not None else threading.Event()
    try:
        with ExitStack() as stack:
            _run(
                config,
                chosen,
                report or _ignore,
                stop,
                reread,
                stack,
                once=once,
                captures=captures,
                owns_process=owns_process,
                waits=waits,
            )
    except Exception:
        # Asked to stop, whatever was cut off fails in its own way; the next start goes on.
        if not stop.is_set():
            raise


def _on_disks(config: Config, chosen: Sequence[SubscriptionConfig]) -> Iterator[Path]:
    """The folders on disks that executors have to share; none if tasks run on this machine."""
    if is_local(config.spark.get("spark.master", DEFAULT_MASTER)) and not config.spool.shared:
        return
    if not config.spool.place.is_remote:
        yield config.spool.folder
    for subscription in chosen:
        if (folder := subscription.sink.folder_on_disk) is not None:
            yield folder


def _run(
    config: Config,
    chosen: Sequence[SubscriptionConfig],
    report: Callable[[MetricsEvent], None],
    stop: threading.Event,
    reread: Callable[[], Config | None],
    stack: ExitStack,
    *,
    once: bool,
    captures: bool,
    owns_process: bool,
    waits: Waits,
) -> None:
    in_force, began_at = config, time.time()
    session = stack.enter_context(RunSession(config, report, owns_process=owns_process))
    # The JVM starts beside all that comes before the first copies.
    if not once or _copies_wait(config, chosen):
        session.begin()
    for subscription in chosen:
        lock = subscription_lock(config.spool.folder, subscription.name, _COMMAND_S)
        stack.enter_context(lock)
        stack.enter_context(ActiveRun(config.spool.place, subscription.name, waits.beat_s))
    # So does the import of what the JVM does not need. All is imported before threads use it.
    load_pyspark(owns_process=session.is_ours and owns_process)
    from pgsluice.capture import CaptureProcess, await_spool, prepare_source
    from pgsluice.sinks import make_sink
    from pgsluice.subscription.base.options import sink_options
    from pgsluice.subscription.base.received import ReceivedLive, ReceivedOnce
    from pgsluice.subscription.copies.scheduler import CopyScheduler
    from pgsluice.subscription.running.driver import SubscriptionDriver
    from pgsluice.subscription.running.loop import RunLoop, capture_states
    from pgsluice.subscription.running.reloading import Reloading

    for subscription in chosen:
        make_sink(sink_options(subscription))
    stack.enter_context(shared_folders(_on_disks(config, chosen)))
    stack.enter_context(capture_states(config.spool.folder, report))
    if captures:
        report(RunStep("preparing the slot"))
        prepared = stack.enter_context(
            prepare_source(config, export_snapshot=True, is_stopping=stop.is_set)
        )
        if prepared.created:
            report(RunStep(prepared.created))
    else:
        report(RunStep("waiting for the spool, which capture makes"))
        prepared = stack.enter_context(await_spool(config, stop.is_set))
    stores = [open_record(config, subscription) for subscription in chosen]
    target = _flush_lsn(config) if once else None
    capture: CaptureProcess | None = None
    if captures:
        capture = stack.enter_context(CaptureProcess(config, once=once))

    def look() -> None:
        if stop.is_set():
            raise PgsluiceError("asked to stop while Spark started")
        if capture is not None:
            capture.check()

    def work(spark: ContextOnDemand) -> None:
        nonlocal in_force
        report(RunStep("looking at the tables"))
        scheduler = CopyScheduler(spark)
        receives_once = ReceivedOnce(config, capture, stop) if capture and once else None
        received = receives_once or ReceivedLive(config, waits.capture_s)
        drivers = [
            SubscriptionDriver(in_force, store, report, scheduler, received, waits)
            for store in stores
        ]
        reloading = Reloading(in_force, drivers, reread, began_at)
        try:
            RunLoop(reloading, spark, capture, drivers, stop, receives_once).run(prepared, target)
        finally:
            in_force = reloading.config

    restarting(
        lambda: session.session(look),
        work,
        lambda: [_reached(store.record) for store in stores],
        is_ours=session.is_ours,
    )
    if target is not None and not stop.is_set():
        raise_unfinished(config, [subscription.name for subscription in chosen], target)


def _reached(record: SubscriptionRecord) -> tuple[Lsn, Lsn]:
    """The subscription's position, and the position of the newest commit in any target."""
    committed = (table.committed for table in record.tables.values())
    return record.position, max(committed, default=Lsn(0))


def _copies_wait(config: Config, chosen: Sequence[SubscriptionConfig]) -> bool:
    """Whether tables need a copy according to the records; a copy needs Spark."""
    from pgsluice.spool import find_record

    records = [find_record(config.spool.place, subscription.name) for subscription in chosen]
    return any(
        record is None or not record.tables or any(t.is_to_copy for t in record.tables.values())
        for record in records
    )


def _chosen(config: Config, names: Sequence[str] | None) -> list[SubscriptionConfig]:
    chosen = (
        [subscription for subscription in config.subscriptions if subscription.enabled]
        if names is None
        else [config.subscription(name) for name in names]
    )
    if not chosen:
        raise ConfigError(
            "the configuration has no enabled subscription",
            hint="add a [[subscription]] with a sink; or use `pgsluice capture CONFIG`, which only "
            "receives changes",
        )
    return chosen


def open_record(config: Config, subscription: SubscriptionConfig) -> RecordStore:
    """The subscription's record; a new one is created durably, at the spool's end.

    That is the last position, not the received-through LSN: after a promotion, commits may follow
    in between.
    """
    from pgsluice.spool import Owner, RecordStore, SpoolReader, SubscriptionRecord, find_record

    reader = SpoolReader(config.spool.place)
    if find_record(config.spool.place, subscription.name) is not None:
        return RecordStore.open(config.spool.place, subscription.name)
    # The spool's first subscription may have all that it holds.
    begin = reader.position() if reader.spool.subscriptions() else reader.start()
    record = SubscriptionRecord(
        name=subscription.name,
        owner=Owner.CONFIG,
        mode=subscription.mode,
        sink=subscription.sink.target,
        registered=begin,
        position=begin,
    )
    return RecordStore.create(config.spool.place, record)


def _flush_lsn(config: Config) -> Lsn:
    from pgsluice.catalog.server import flush_lsn
    from pgsluice.replication import connect_sql

    with connect_sql(
        config.source.conninfo,
        "asking for the server's flush LSN",
        timeout_s=config.source.connect_timeout_s,
    ) as connection:
        return flush_lsn(connection)


def raise_unfinished(config: Config, names: Sequence[str], target: Lsn) -> None:
    """Raise an error with the tables that are parked or not applied up to a position, if there are
    any.
    """
    from pgsluice.spool import SpoolReader, find_record

    reader = SpoolReader(config.spool.place)
    last = max((info.end for info in reader.all_segments() if info.end <= target), default=Lsn(0))
    parked, behind, unfinished = [], [], set()
    for name in names:
        record = find_record(config.spool.place, name)
        for oid, table in record.tables.items() if record is not None else ():
            title = f"{name}: {table.title}"
            why = without_table(table.error or "", table.title)
            if table.is_parked:
                parked.append(f"{title}: {why}")
            elif table.is_to_copy:
                behind.append(f"{title}: waits for a copy" + (why and f": {why}"))
            elif table.applied_through < last:
                where = f"applied through {table.applied_through}"
                behind.append(f"{title}: {where}" + (why and f": {why}"))
            else:
                continue
            unfinished.add((name, oid))
    if not parked and not behind:
        return
    tables = [_count(parked, "parked"), *parked] if parked else []
    tables += [_count(behind, f"not at {target} yet"), *behind] if behind else []
    what, *lines = "\n".join(tables).split("\n")  # a reason has several lines
    hint = "run again: it continues where it stopped" if behind else None
    raise TablesUnfinished(what, details=lines, hint=hint, tables=frozenset(unfinished))


def _count(tables: Sequence[str], what: str) -> str:
    return f"{len(tables)} table{' is' if len(tables) == 1 else 's are'} {what}:"
