"""The threads of one active subscription: one for its batches, and the main thread: first a catalog
refresh, then turns until the end.

Slow work (a batch, a server that does not answer) delays only this subscription. Copies run in
other threads. A batch holds the tables' lock, so only the subscription's threads wait for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from pgsluice.errors import (
    ConfigError,
    PgsluiceError,
    SourceRefused,
    SourceUnreachable,
    TableError,
    TargetUnreachable,
)
from pgsluice.events import BatchFailed, RunStep
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spark.errors import is_without_jvm, spark_errors, summarize_error
from pgsluice.spool import SpoolReader
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.base.requests import pending_requests
from pgsluice.subscription.lifecycle.table_events import LOOKS
from pgsluice.subscription.running.driver import SubscriptionDriver
from pgsluice.subscription.running.reloading import Reloading
from pgsluice.system.threads import Backoff, WorkThread

logger = logging.getLogger(__name__)

TURN_S = 0.25
"""The pause between two turns, in seconds. Batches do not wait for it, and an idle run costs as
much CPU as its turns."""
LONG_POLL_S = 1.0
"""How long a call waits for changes, in seconds: an idle run wakes up this rarely, and stops this
soon."""
_RETRIES_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class BatchThread(WorkThread):
    """Runs batches until the run ends, or until another attempt would be useless.

    A batch that fails for another reason is run again, with growing pauses: nothing of it was
    recorded, and targets store their own position.

    Args:
        ending: set when the run ends; the thread ends within :data:`LONG_POLL_S`, or when its Spark
            job is interrupted.
        retries_s: the pauses after consecutive failed batches; the last one repeats.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        ending: threading.Event,
        retries_s: Sequence[float] = _RETRIES_S,
    ) -> None:
        super().__init__(f"pgsluice batches of {driver.subscription.name}", self._run_batches)
        self._driver = driver
        self._ending = ending
        self._retries_s = retries_s

    def _run_batches(self) -> None:
        backoff, logged = Backoff(self._retries_s), ""
        while not self._ending.is_set():
            try:
                if self._driver.batches.run_next(LONG_POLL_S):
                    backoff.succeeded()
                    logged = ""
            except BaseException as error:
                if self._ending.is_set():
                    return
                # Another attempt may be useless.
                self._driver.raise_failure()
                if not isinstance(error, Exception) or is_without_jvm(error):
                    raise
                why = str(error) if isinstance(error, PgsluiceError) else summarize_error(error)
                self._driver.report(BatchFailed(self._driver.subscription.name, why))
                if why != logged:
                    name, logged = self._driver.subscription.name, why
                    logger.warning("%s: a batch failed; pgsluice keeps retrying: %s", name, why)
                self._ending.wait(backoff.failed())


class RunningSubscription:
    """Runs one subscription."""

    def __init__(
        self, reloading: Reloading, driver: SubscriptionDriver, ending: threading.Event
    ) -> None:
        config = reloading.config
        self._reloading = reloading
        self.driver = driver
        self._has_begun = False
        self._ending = ending
        self._poll_s = config.source.catalog_poll_s
        self._spool = config.spool.place
        self._folder = subscription_folder(config.spool.folder, driver.subscription.name)
        self._looked_at = time.monotonic()
        self._batches = BatchThread(driver, ending)
        self._retry_s = driver.waits.source_retry_s
        self._retry_at = 0.0
        """Do not query the source before this time."""

    @property
    def needs_first_snapshot(self) -> bool:
        """Whether the first copies may still need the snapshot of a new slot."""
        return not self._has_begun or self.driver.copies.uses_first_snapshot

    @property
    def is_working(self) -> bool:
        """Whether a batch or a copy may still run."""
        return self._batches.is_alive() or self.driver.copies.is_running

    def join(self, timeout_s: float) -> None:
        """Wait for the end of batches and copies, at most this long."""
        deadline = time.monotonic() + timeout_s
        if self._batches.ident is not None:
            self._batches.join(timeout_s)
        self.driver.copies.join(max(0.0, deadline - time.monotonic()))

    def copy_first(self, snapshot: Snapshot | None, *, follows: bool = False) -> None:
        """Make the first copies.

        Args:
            snapshot: the snapshot of a new slot, while it exists.
            follows: batches will run at the same time; the copies are only started here.

        Raises:
            SinkError, SourceRefused, ConfigError: the run cannot start.
        """
        self.driver.copy_released()
        # Those of an earlier run, perhaps by another clock.
        self.driver.results.end_deferrals(now=math.inf)
        self.driver.tables.report_parked()
        if follows:
            self._with_source(self.driver.looks.look)
            self.driver.copies.tend(self._ending, snapshot)
        else:
            attempts = iter([snapshot])  # it ends with the connection that exported it
            self._with_source(lambda: self._look_and_copy(next(attempts, None)))
        self._has_begun = True
        self.driver.report(RunStep(""))

    def _look_and_copy(self, snapshot: Snapshot | None = None) -> None:
        self.driver.looks.look()
        self.driver.copies.run(first=snapshot, stop=self._ending)

    def _with_source(self, work: Callable[[], None]) -> None:
        """Call a function that needs the server, and repeat it while the server is unreachable.

        Capture runs by now, and ends with an error if waiting is useless.
        """
        while not self._ending.is_set():
            try:
                work()
            except SourceUnreachable as error:
                self.driver.log_once(str(error))
                self._ending.wait(self._retry_s)
            else:
                self.driver.log_once(None)
                return

    def catch_up_once(self) -> None:
        """Apply everything that the spool has now.

        Raises:
            PgsluiceError: a failure that waiting does not solve.
        """
        driver = self.driver
        # Capture may have added tables to the publications since the first look.
        self._with_source(self._look_and_copy)
        driver.batches.catch_up(with_deferred=True)
        self._run_batches()
        driver.raise_failure()
        # What the cadence deferred, what failed once, and what the stream
        # could not tell.
        for _ in range(LOOKS + 1):
            if driver.tables.needs_look:
                self._with_source(driver.looks.look)
            driver.batches.drain()
            if not driver.tables.needs_look:
                break
        self._with_source(lambda: driver.copies.run(stop=self._ending))
        driver.batches.drain()
        driver.results.promote_copied()  # no batch may have followed the copies
        driver.batches.answer_barrier()
        while driver.batches.delete_leftovers() and not self._ending.is_set():
            pass

    def _run_batches(self) -> None:
        """Run batches up to the spool's current position."""
        driver = self.driver
        end = SpoolReader(self._spool).position()
        while driver.tables.position < end and not self._ending.is_set():
            if not driver.batches.run_next(LONG_POLL_S):
                driver.batches.answer_barrier()

    def run_until_ending(self) -> None:
        """Apply changes until the run ends."""
        self._batches.start()
        while not self._ending.wait(TURN_S):
            self.turn()

    def turn(self) -> None:
        """One turn: handle command files, copies and deferred tables."""
        driver = self.driver
        self._batches.raise_error()
        self._try_store(self._take_requests)
        is_poll = time.monotonic() - self._looked_at >= self._poll_s
        if driver.is_look_due.is_set():
            driver.is_look_due.clear()
            driver.looks.look_anew()
            is_poll, self._retry_at = True, 0.0
        if is_poll:
            self._looked_at = time.monotonic()
            self._try_store(driver.copy_released)
        if time.monotonic() >= self._retry_at:
            is_look = is_poll or driver.tables.needs_look
            self._try(lambda: self._copy(is_look=is_look))
        if time.monotonic() >= self._retry_at and driver.batches.is_behind():
            self._try(driver.batches.catch_up)
        self._try(driver.batches.answer_barrier)
        self._try_store(driver.results.promote_copied)
        self._try_store(driver.suspicious.tend)
        self._try_store(driver.catalog.tend)

    def _take_requests(self) -> None:
        for request in pending_requests(self._folder):
            if request.has_other_settings:
                self._reloading.reload()
            self.driver.tables.request_copy(request.oid, repairs=request.repairs)
            request.path.unlink()

    def _copy(self, *, is_look: bool) -> None:
        if is_look:
            self.driver.looks.look()
        self.driver.copies.tend(self._ending)
        if is_look:
            self.driver.log_once(None)

    def _try_store(self, work: Callable[[], object]) -> None:
        """Do work that the store of the spool or of a target may delay."""
        try:
            work()
        except TargetUnreachable as error:
            self.driver.log_once(str(error))
            self._retry_at = time.monotonic() + self._retry_s

    def _try(self, work: Callable[[], object]) -> None:
        """Do work whose failure delays it but does not end the run."""
        try:
            work()
        except (
            SourceUnreachable,
            SourceRefused,
            TargetUnreachable,
            ConfigError,
            TableError,
        ) as error:
            # The server or the target's store is away, or the server has no snapshot now (no free
            # slot, a transaction that stays open): capture says what ends the run, and copies
            # wait. Or publications of pgsluice cannot be resolved any more: those that were in
            # force stay.
            message = str(error)
        except spark_errors() as error:
            # A job broke, with its workers perhaps.
            if self._ending.is_set() or is_without_jvm(error):
                raise
            message = f"a Spark job failed; pgsluice retries it: {summarize_error(error)}"
        else:
            return
        self.driver.log_once(message)
        self._retry_at = time.monotonic() + self._retry_s
