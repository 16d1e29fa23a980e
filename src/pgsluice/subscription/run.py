"""Run a whole configuration: capture as a process of its own, and a query a subscription.

The order at the start (contracts, sections 2, 3 and 8): publications, slot, spool; then each
subscription registers durably, so that the spool keeps what it will need; then capture
streams; then tables are copied, the first ones under the slot's own snapshot; then the queries
start. Everything is safe to be cut off anywhere: the next start finds what is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.capture import CaptureProcess, PreparedSource, prepare_source
from pgsluice.catalog import flush_lsn
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import Snapshot
from pgsluice.errors import (
    ConfigError,
    PgsluiceError,
    SourceRefused,
    SourceUnreachable,
    SpoolFull,
    TableError,
)
from pgsluice.events import CapturePhase, MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql
from pgsluice.spark.errors import summarize_error
from pgsluice.spark.java import require_java
from pgsluice.spark.session import build_session, require_spark, start_session
from pgsluice.spool import Owner, RecordStore, SpoolReader, SubscriptionRecord, find_record
from pgsluice.spool.layout import SPARK_LOG
from pgsluice.spool.lock import subscription_lock
from pgsluice.subscription.copying import TableCopies
from pgsluice.subscription.driver import SubscriptionDriver
from pgsluice.subscription.requests import pending_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.1
_FULL_S = 3.0
"""How long the spool has to be full: capture looks for room each second."""
_CAPTURE_ENDS_S = 30.0
_ASK_AGAIN_S = 5.0
"""The pause after the source could not be asked for tables or copies."""
_RESTARTS_S = (1.0, 2.0, 5.0, 10.0, 30.0)


def _ignore(_: MetricsEvent) -> None:
    return None


def run(
    config: Config,
    *,
    once: bool = False,
    names: Sequence[str] | None = None,
    report: Callable[[MetricsEvent], None] | None = None,
    stop: threading.Event | None = None,
    reread: Callable[[], Config | None] = lambda: None,
) -> None:
    """Replicate until ``stop`` is set; with ``once``, up to the source's position at the start.

    Args:
        config: what to replicate.
        once: end by itself.
        names: these subscriptions only; None: all that are enabled.
        report: takes events, from several threads.
        stop: ends the run cleanly.
        reread: asked again and again; a configuration when its publications are to be taken
            over. It may raise ConfigError: then everything goes on as it was.

    Raises:
        ConfigError: no subscription, no Java, no fit Spark, publications that are refused.
        SourceRefused: the source is not fit, or is not the spool's.
        SourceUnreachable: no connection before the first START_REPLICATION.
        SinkError: a target as a whole cannot be used.
        PgsluiceError: ``once``, and a table is parked.
    """
    chosen = _chosen(config, names)
    require_spark()
    require_java()
    stop = stop if stop is not None else threading.Event()
    try:
        with ExitStack() as stack:
            _run(config, chosen, once, report or _ignore, stop, reread, stack)
    except Exception:
        # Asked to stop, whatever was cut off fails in its own way; the next start goes on.
        if not stop.is_set():
            raise


def _run(
    config: Config,
    chosen: Sequence[SubscriptionConfig],
    once: bool,
    report: Callable[[MetricsEvent], None],
    stop: threading.Event,
    reread: Callable[[], Config | None],
    stack: ExitStack,
) -> None:
    for one in chosen:
        stack.enter_context(subscription_lock(config.spool.path, one.name))
    prepared = stack.enter_context(
        prepare_source(config, export_snapshot=True, is_stopping=stop.is_set)
    )
    stores = [_registered(config, one) for one in chosen]
    target = _flush_lsn(config)
    capture = stack.enter_context(CaptureProcess(config, once=once))

    def look() -> None:
        if stop.is_set():
            raise PgsluiceError("asked to stop while Spark started")
        capture.check()

    spark = stack.enter_context(_session(config, look))
    running = [
        _Running(
            driver := SubscriptionDriver(spark, config, one, store, report),
            TableCopies(driver, config),
        )
        for one, store in zip(chosen, stores, strict=True)
    ]
    _Run(config, spark, capture, running, stop, reread).go(prepared, target if once else None)


@contextmanager
def _session(config: Config, look: Callable[[], object]) -> Iterator[SparkSession]:
    """The session that runs already (a notebook's, a platform's), else one for this run.

    Raises:
        PgsluiceError: what ``look`` raises before it is up; it ends when it is.
    """
    from pyspark.sql import SparkSession

    # One that was started in another thread is not active in this one.
    running = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    settings = {"spark.python.daemon.module": "pgsluice.subscription.daemon", **config.spark}
    if running is not None:
        yield build_session(settings, "pgsluice")
        return
    spark = start_session(settings, "pgsluice", config.spool.path / SPARK_LOG, look)
    try:
        yield spark
    finally:
        spark.stop()


def _chosen(config: Config, names: Sequence[str] | None) -> list[SubscriptionConfig]:
    chosen = (
        [one for one in config.subscriptions if one.enabled]
        if names is None
        else [config.subscription(name) for name in names]
    )
    if not chosen:
        raise ConfigError(
            "there is no enabled subscription to run",
            hint="add a [[subscription]] with a sink, or use `pgsluice capture` to only receive",
        )
    return chosen


def _registered(config: Config, subscription: SubscriptionConfig) -> RecordStore:
    """The subscription's record, made durably at the spool's end when it is new.

    That is the last position, not the frontier: after a promotion commits may come between.
    """
    reader = SpoolReader(config.spool.path)
    if find_record(config.spool.path, subscription.name) is not None:
        return RecordStore.open(config.spool.path, subscription.name)
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
    return RecordStore.create(config.spool.path, record)


def _flush_lsn(config: Config) -> Lsn:
    with connect_sql(config.source.dsn, timeout_s=config.source.connect_timeout_s) as connection:
        return flush_lsn(connection)


@dataclass(slots=True)
class _Running:
    """One subscription at work."""

    driver: SubscriptionDriver
    copies: TableCopies
    query: StreamingQuery | None = None
    restarts: int = 0
    restart_at: float = 0.0
    ask_at: float = 0.0


class _Run:
    """The loop around everything."""

    def __init__(
        self,
        config: Config,
        spark: SparkSession,
        capture: CaptureProcess,
        running: Sequence[_Running],
        stop: threading.Event,
        reread: Callable[[], Config | None],
    ) -> None:
        self._reread = reread
        self._config = config
        self._spark = spark
        self._capture = capture
        self._running = running
        self._stop = stop
        self._polled = time.monotonic()

    def go(self, prepared: PreparedSource, target: Lsn | None) -> None:
        interrupter = threading.Thread(target=self._interrupt, daemon=True)
        interrupter.start()
        try:
            self._copy_first(prepared)
            if target is not None:
                self._once(target)
            else:
                self._forever()
        finally:
            self._end_queries()

    def _interrupt(self) -> None:
        """A Spark job that runs in the main thread ends when the stop is asked for."""
        self._stop.wait()
        self._spark.interruptAll()

    def _copy_first(self, prepared: PreparedSource) -> None:
        """The first copies, under the new slot's snapshot while it is there."""
        snapshot = None
        if prepared.snapshot_name is not None:
            timeline = prepared.spool.identity.timeline
            snapshot = Snapshot(prepared.snapshot_name, prepared.consistent_point, timeline)
        for one in self._running:
            one.driver.take_released()
            one.driver.report_parked()
            one.copies.discover()
            one.copies.run(first=snapshot, stop=self._stop)
        prepared.close()

    # Once

    def _once(self, target: Lsn) -> None:
        """Apply up to the target; what does not fit into the spool at once, in turns."""
        reader = SpoolReader(self._config.spool.path)
        before: Lsn | None = None
        while not self._wait_for(reader, target):
            if before == reader.frontier():
                raise SpoolFull(
                    "the spool is at its size limit, and nothing that could be applied makes room",
                    hint="raise spool.max_bytes: a transaction has to fit into it, and what slower "
                    "subscriptions still need",
                    path=str(self._config.spool.path),
                )
            before = reader.frontier()
            self._apply_all()
        self._apply_all()
        # It may have had something to say although nothing was left to receive.
        ends_by = time.monotonic() + _CAPTURE_ENDS_S
        while self._capture.check() and time.monotonic() < ends_by:
            if self._stop.wait(_LOOK_S):
                return

    def _wait_for(self, reader: SpoolReader, target: Lsn) -> bool:
        """Wait until the spool has the target; False when it has no room for it."""
        full_since: float | None = None
        while reader.frontier() < target and not self._stop.wait(_LOOK_S):
            if not self._capture.check():
                return True  # a standby was promoted meanwhile, and capture has all it had then
            health = self._capture.health()
            if (
                health is None
                or health.pid != self._capture.pid  # an earlier one's, that was killed
                or health.phase is not CapturePhase.WAITING
            ):
                full_since = None
            elif full_since is None:
                full_since = time.monotonic()
            elif time.monotonic() - full_since >= _FULL_S:
                return False
        return True

    def _apply_all(self) -> None:
        for one in self._running:
            if self._stop.is_set():
                return
            # Once more: capture may have added tables to the publications since the first look.
            one.copies.discover()
            one.copies.run(stop=self._stop)
            one.driver.catch_up(with_deferred=True)
            one.query = one.driver.start(once=True)
            while not one.query.awaitTermination(1):
                self._capture.check()
            one.driver.raise_failure(one.query)
            if one.driver.needs_look:
                one.copies.discover()
            # What the cadence put off during the query, what failed once, and what the stream
            # could not tell.
            one.driver.finish()
            one.copies.run(stop=self._stop)
            one.driver.finish()

    # For ever

    def _forever(self) -> None:
        for one in self._running:
            one.driver.catch_up()
            one.query = one.driver.start(once=False)
        while not self._stop.wait(_LOOK_S):
            self._capture.check()
            poll = self._take_over() or (
                time.monotonic() - self._polled >= self._config.source.catalog_poll_s
            )
            for one in self._running:
                self._look_after(one, poll=poll)
            if poll:
                self._polled = time.monotonic()

    def _take_over(self) -> bool:
        """Take other publications of our own over, when that is asked for."""
        try:
            config = self._reread()
            if config is None:
                return False
            for one in self._running:
                one.driver.take_over(config)
        except ConfigError as error:
            for one in self._running:
                one.driver.note(str(error))
            return False
        for one in self._running:
            one.ask_at = 0.0
        return True

    def _look_after(self, one: _Running, *, poll: bool) -> None:
        assert one.query is not None
        if not one.query.isActive:
            self._restart(one)
        elif one.restarts and one.driver.is_well():
            one.restarts = 0
        for path, oid in pending_requests(self._folder(one)):
            one.copies.request(oid)
            path.unlink()
        if poll:
            one.driver.take_released()
        if time.monotonic() >= one.ask_at:
            look = poll or one.driver.needs_look
            self._try(one, lambda: self._copy(one, poll=look))
        if time.monotonic() >= one.ask_at and one.driver.is_behind():
            self._try(one, one.driver.catch_up)
        one.driver.settle()

    def _copy(self, one: _Running, *, poll: bool) -> None:
        if poll:
            one.copies.discover()
            one.driver.note(None)
        if one.copies.pending():
            one.copies.run(stop=self._stop)

    def _try(self, one: _Running, work: Callable[[], None]) -> None:
        """Do what only waits, and does not end the run, when it cannot be done now."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            work()
        except (SourceUnreachable, SourceRefused, ConfigError, TableError) as error:
            # The server is away, or has no snapshot for us now (no free slot, a transaction
            # that stays open). Capture says what ends it all; copies wait. Or publications of
            # ours cannot be made any more: those that were in force go on.
            message = str(error)
        except (PySparkException, Py4JJavaError) as error:
            # A job broke, with its workers perhaps; a query would be started again, too.
            if self._stop.is_set():
                raise
            message = f"a Spark job failed and is tried again: {summarize_error(error)}"
        else:
            return
        one.driver.note(message)
        one.ask_at = time.monotonic() + _ASK_AGAIN_S

    def _restart(self, one: _Running) -> None:
        """A query that broke is started again, a little later each time."""
        now = time.monotonic()
        if not one.restart_at:
            one.driver.check_spool()
            one.driver.raise_failure(one.query, final_only=True)
            pause = _RESTARTS_S[min(one.restarts, len(_RESTARTS_S) - 1)]
            one.restarts += 1
            one.restart_at = now + pause
        elif now >= one.restart_at:
            one.restart_at = 0.0
            one.query = one.driver.start(once=False)

    def _folder(self, one: _Running) -> Path:
        return one.driver.spool.subscription_folder(one.driver.subscription.name)

    def _end_queries(self) -> None:
        for one in self._running:
            if one.query is not None and one.query.isActive:
                one.query.stop()


def raise_parked(config: Config, names: Sequence[str] | None = None) -> None:
    """Say which tables are parked, as an error.

    Raises:
        PgsluiceError: at least one is.
    """
    parked = [
        (record.name, table)
        for one in _chosen(config, names)
        if (record := find_record(config.spool.path, one.name)) is not None
        for table in record.tables.values()
        if table.is_parked
    ]
    if parked:
        lines = "\n".join(
            f"{subscription}: {(title := f'{table.namespace}.{table.name}')}: "
            f"{(table.error or '').removeprefix(f'{title}: ')}"
            for subscription, table in parked
        )
        count = "1 table is" if len(parked) == 1 else f"{len(parked)} tables are"
        raise PgsluiceError(f"{count} parked:\n{lines}")
