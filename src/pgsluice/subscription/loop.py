"""The loop around the subscriptions of a run: once up to a position, or until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgsluice.capture import CaptureProcess, PreparedSource
from pgsluice.config import Config
from pgsluice.copy import Snapshot
from pgsluice.errors import (
    ConfigError,
    SourceRefused,
    SourceUnreachable,
    SpoolFull,
    TableError,
)
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.spark.errors import summarize_error
from pgsluice.spool import SpoolReader
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.driver import SubscriptionDriver
from pgsluice.subscription.requests import pending_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.1
_FULL_S = 3.0
"""How long the spool has to be full: capture looks for room each second."""
_CAPTURE_END_S = 30.0
_RETRY_S = 5.0
"""The pause after the source could not be asked for tables or copies."""
_RESTARTS_S = (1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class RunningSubscription:
    """One subscription at work.

    Attributes:
        driver: runs it.
        restarts: how often in a row its query was started again without finishing a batch.
        restart_at: when its query is started again, by the monotonic clock; 0: it runs.
        retry_at: until when the source is not asked again.
    """

    driver: SubscriptionDriver
    restarts: int = 0
    restart_at: float = 0.0
    retry_at: float = 0.0


class RunLoop:
    """Runs subscriptions side by side, from the first copies to the end.

    Args:
        config: what is replicated.
        spark: the session.
        capture: receives into the spool.
        subscriptions: what runs.
        stop: ends the loop.
        reread: a configuration whose publications are to be taken over, if there is one.
    """

    def __init__(
        self,
        config: Config,
        spark: SparkSession,
        capture: CaptureProcess,
        subscriptions: Sequence[RunningSubscription],
        stop: threading.Event,
        reread: Callable[[], Config | None],
    ) -> None:
        self._reread = reread
        self._config = config
        self._spark = spark
        self._capture = capture
        self._subscriptions = subscriptions
        self._stop = stop
        self._polled = time.monotonic()

    def run(self, prepared: PreparedSource, target: Lsn | None) -> None:
        """Copy, then apply.

        Args:
            prepared: the source; its snapshot serves the first copies.
            target: where to end; None: run until stopped.
        """
        has_ended = threading.Event()
        interrupter = threading.Thread(target=self._interrupt, args=(has_ended,), daemon=True)
        interrupter.start()
        try:
            self._copy_first(prepared)
            if target is not None:
                self._run_once(target)
            else:
                self._run_until_stopped()
        finally:
            for subscription in self._subscriptions:
                subscription.driver.suspicious.stop()
                subscription.driver.query.stop()
            has_ended.set()
            interrupter.join()

    def _interrupt(self, has_ended: threading.Event) -> None:
        """A Spark job that runs in the main thread ends when the stop is asked for.

        After the run's end the session is its owner's, and no job of it is interrupted.
        """
        while not has_ended.is_set():
            if self._stop.wait(_POLL_S):
                self._spark.interruptAll()
                return

    def _copy_first(self, prepared: PreparedSource) -> None:
        """The first copies, under the new slot's snapshot while it is there."""
        snapshot = None
        if prepared.snapshot_name is not None:
            timeline = prepared.spool.identity.timeline
            snapshot = Snapshot(prepared.snapshot_name, prepared.consistent_point, timeline)
        for subscription in self._subscriptions:
            driver = subscription.driver
            driver.copy_released()
            driver.tables.report_parked()
            driver.looks.look()
            driver.copies.run(first=snapshot, stop=self._stop)
        prepared.close()

    # Once

    def _run_once(self, target: Lsn) -> None:
        """Apply up to the target, and verify what a look found suspicious."""
        reader = SpoolReader(self._config.spool.path)
        self._reach(reader, target, self._subscriptions)
        for subscription in self._subscriptions:
            if not self._stop.is_set():
                self._verify(reader, subscription)
        # Surface a late capture error, also where nothing was left to receive.
        ends_by = time.monotonic() + _CAPTURE_END_S
        while self._capture.check() and time.monotonic() < ends_by:
            if self._stop.wait(_POLL_S):
                return

    def _verify(self, reader: SpoolReader, subscription: RunningSubscription) -> None:
        """Verify the suspicious tables at a position of now, and copy those that differ."""
        driver = subscription.driver

        def reach(position: Lsn) -> None:
            self._capture.start_again()
            self._reach(reader, position, [subscription])

        driver.suspicious.verify_now(reach)
        if driver.copies.pending():
            driver.copies.run(stop=self._stop)
            driver.drain()

    def _reach(
        self, reader: SpoolReader, target: Lsn, subscriptions: Sequence[RunningSubscription]
    ) -> None:
        """Apply up to the target; what does not fit into the spool at once, in turns."""
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
            self._apply_all(subscriptions)
        self._apply_all(subscriptions)

    def _wait_for(self, reader: SpoolReader, target: Lsn) -> bool:
        """Wait until the spool has the target; False when it has no room for it."""
        full_since: float | None = None
        while reader.frontier() < target and not self._stop.wait(_POLL_S):
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

    def _apply_all(self, subscriptions: Sequence[RunningSubscription]) -> None:
        for subscription in subscriptions:
            if self._stop.is_set():
                return
            driver = subscription.driver
            # Capture may have added tables to the publications since the first look.
            driver.looks.look()
            driver.copies.run(stop=self._stop)
            driver.catch_up(with_deferred=True)
            if driver.has_waiting_segments():  # a query takes seconds to start
                driver.query.start(once=True)
                while not driver.query.await_end(1):
                    self._capture.check()
                    driver.answer_barrier()
            driver.raise_failure()
            driver.query.raise_failure()
            if driver.tables.needs_look:
                driver.looks.look()
            # What the cadence deferred during the query, what failed once, and what the stream
            # could not tell.
            driver.drain()
            driver.copies.run(stop=self._stop)
            driver.drain()
            driver.answer_barrier()

    # Until stopped

    def _run_until_stopped(self) -> None:
        for subscription in self._subscriptions:
            subscription.driver.catch_up()
            subscription.driver.query.start(once=False)
        while not self._stop.wait(_POLL_S):
            self._capture.check()
            is_poll = self._reload_publications() or (
                time.monotonic() - self._polled >= self._config.source.catalog_poll_s
            )
            for subscription in self._subscriptions:
                self._tend(subscription, is_poll=is_poll)
            if is_poll:
                self._polled = time.monotonic()

    def _reload_publications(self) -> bool:
        """Take other publications of pgsluice over, when that is asked for."""
        try:
            config = self._reread()
            if config is None:
                return False
            for subscription in self._subscriptions:
                subscription.driver.reload_publications(config)
        except ConfigError as error:
            for subscription in self._subscriptions:
                subscription.driver.log_once(str(error))
            return False
        for subscription in self._subscriptions:
            subscription.retry_at = 0.0
        return True

    def _tend(self, subscription: RunningSubscription, *, is_poll: bool) -> None:
        """One turn for one subscription: its query, requests, copies and deferred tables."""
        driver = subscription.driver
        if not driver.query.is_active():
            self._restart(subscription)
        elif subscription.restarts and driver.query.has_applied_batch():
            subscription.restarts = 0
        folder = subscription_folder(self._config.spool.path, driver.subscription.name)
        for path, oid in pending_requests(folder):
            driver.tables.request_copy(oid)
            path.unlink()
        if is_poll:
            driver.copy_released()
        if time.monotonic() >= subscription.retry_at:
            is_look = is_poll or driver.tables.needs_look
            self._try(subscription, lambda: self._copy(driver, is_look=is_look))
        if time.monotonic() >= subscription.retry_at and driver.is_behind():
            self._try(subscription, driver.catch_up)
        self._try(subscription, driver.answer_barrier)
        driver.promote_copied()
        driver.suspicious.tend()

    def _copy(self, driver: SubscriptionDriver, *, is_look: bool) -> None:
        if is_look:
            driver.looks.look()
            driver.log_once(None)
        if driver.copies.pending():
            driver.copies.run(stop=self._stop)

    def _try(self, subscription: RunningSubscription, work: Callable[[], None]) -> None:
        """Do work whose failure only delays it, and does not end the run."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            work()
        except (SourceUnreachable, SourceRefused, ConfigError, TableError) as error:
            # The server is away, or has no snapshot now (no free slot, a transaction that stays
            # open): capture says what ends the run, and copies wait. Or publications of
            # pgsluice cannot be resolved any more: those that were in force stay.
            message = str(error)
        except (PySparkException, Py4JJavaError) as error:
            # A job broke, with its workers perhaps; a query would be started again, too.
            if self._stop.is_set():
                raise
            message = f"a Spark job failed and is tried again: {summarize_error(error)}"
        else:
            return
        subscription.driver.log_once(message)
        subscription.retry_at = time.monotonic() + _RETRY_S

    def _restart(self, subscription: RunningSubscription) -> None:
        """A query that broke is started again, a little later each time."""
        driver, now = subscription.driver, time.monotonic()
        if not subscription.restart_at:
            driver.raise_failure()
            failure = driver.query.failure()
            if failure is not None:
                driver.log_once(f"the query failed and is started again: {failure}")
            pause_s = _RESTARTS_S[min(subscription.restarts, len(_RESTARTS_S) - 1)]
            subscription.restarts += 1
            subscription.restart_at = now + pause_s
        elif now >= subscription.restart_at:
            subscription.restart_at = 0.0
            driver.query.start(once=False)
