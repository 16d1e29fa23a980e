"""The loop around the subscriptions of a run: once up to a position, or until it is stopped.

Nothing here waits for a subscription: each works in its own threads
(:mod:`pgsluice.subscription.running.turns`). So even while rows are copied for hours, a killed
capture is restarted, and an error of capture ends the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pgsluice.capture import CaptureProcess, PreparedSource, read_health
from pgsluice.errors import SourceRefused, SourceUnreachable, SpoolFull
from pgsluice.events import CaptureState, MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spark.jobs.tasks import interrupt_tasks
from pgsluice.spark.session.session import raise_if_ended
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.spool import SpoolReader
from pgsluice.subscription.base.received import ReceivedOnce, connect_behind_publications
from pgsluice.subscription.running.driver import SubscriptionDriver
from pgsluice.subscription.running.reloading import Reloading
from pgsluice.subscription.running.turns import TURN_S, RunningSubscription
from pgsluice.system.threads import WorkThread

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_CAPTURE_END_S = 30.0
_STATES_S = 1.0
_END_S = 1.0
"""How long a subscription may take to end before it is interrupted again, in seconds."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Lets the subscriptions of a run work at the same time.

    Attributes:
        capture: None: another process receives, perhaps on another machine.
        stop: set when the user asks the run to stop.
        ending: set here when the run ends; all work then ends soon.
    """

    session: ContextOnDemand
    capture: CaptureProcess | None
    subscriptions: Sequence[RunningSubscription]
    stop: threading.Event
    ending: threading.Event

    def run(
        self,
        work: Callable[[RunningSubscription], None],
        watch: Callable[[], None] = lambda: None,
        subscriptions: Sequence[RunningSubscription] | None = None,
    ) -> None:
        """Run a function for each subscription in its own thread, and watch capture meanwhile.

        Args:
            work: the function; it has to end soon after ``ending`` is set.
            watch: called several times a second.

        Raises:
            BaseException: the first error of capture, of Spark or of the work.
        """
        if self.stop.is_set():
            return
        threads = [
            WorkThread(f"pgsluice {running.driver.subscription.name}", partial(work, running))
            for running in subscriptions or self.subscriptions
        ]
        for thread in threads:
            thread.start()
        try:
            began = time.monotonic()
            while any(thread.is_alive() for thread in threads):
                self._look_after(threads)
                watch()
                # The end of short work is seen soon; long work is not asked often.
                pause_s = (time.monotonic() - began) / 10
                if self.stop.wait(min(TURN_S, max(0.01, pause_s))):
                    return
            self._look_after(threads)
        except BaseException:
            self.ending.set()
            raise
        finally:
            self._end(threads)

    def _look_after(self, threads: Sequence[WorkThread]) -> None:
        raise_if_ended()
        self.session.look_after()
        if self.capture is not None:
            self.capture.check()
        for thread in threads:
            thread.raise_error()

    def _end(self, threads: Sequence[WorkThread]) -> None:
        """Interrupt what still runs, and wait for its end."""
        running = self.subscriptions

        def is_working() -> bool:
            return any(one.is_alive() for one in threads) or any(one.is_working for one in running)

        if is_working():
            self.ending.set()
        if not self.ending.is_set():
            return
        for subscription in running:
            subscription.driver.catalog.stop()
        while True:
            # Only jobs of this run's threads: afterwards, the session is its owner's again.
            with suppress(Exception):  # Spark has ended, or cannot be reached any more
                context = self.session.running
                if context is not None and is_working():
                    interrupt_tasks(context)
            deadline = time.monotonic() + _END_S
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            for subscription in running:
                subscription.driver.suspicious.stop()
                subscription.join(max(0.0, deadline - time.monotonic()))
            if not is_working():
                break


class RunLoop:
    """Runs all subscriptions at the same time, from the first copies to the end.

    Args:
        received: with ``--once``: the run's capture.
    """

    def __init__(
        self,
        reloading: Reloading,
        session: ContextOnDemand,
        capture: CaptureProcess | None,
        drivers: Sequence[SubscriptionDriver],
        stop: threading.Event,
        received: ReceivedOnce | None = None,
    ) -> None:
        self._reloading = reloading
        self._received = received
        self._capture = capture
        self._stop = stop
        self._ending = threading.Event()
        self._subscriptions = [
            RunningSubscription(reloading, driver, self._ending) for driver in drivers
        ]
        self._beside = SideBySide(session, capture, self._subscriptions, stop, self._ending)

    def run(self, prepared: PreparedSource, target: Lsn | None) -> None:
        """Copy tables, then apply changes.

        Args:
            prepared: the source; the first copies use its snapshot.
            target: where to end; None: run until stopped.

        Raises:
            PgsluiceError: the error that ended capture, a subscription, or Spark.
        """
        snapshot = None
        if prepared.snapshot_name is not None:
            timeline = prepared.spool.identity.timeline
            snapshot = Snapshot(prepared.snapshot_name, prepared.consistent_point, timeline)

        def begin(subscription: RunningSubscription) -> None:
            subscription.copy_first(snapshot, follows=target is None)
            if target is None:
                subscription.run_until_ending()

        def watch() -> None:
            if not any(one.needs_first_snapshot for one in self._subscriptions):
                prepared.close()
            self._reloading.reload_if_asked()

        self._beside.run(begin, watch)
        prepared.close()
        if target is not None and self._received is not None and not self._stop.is_set():
            self._run_once(self._received, target)

    # Once

    def _run_once(self, received: ReceivedOnce, target: Lsn) -> None:
        """Apply changes up to the target, and verify suspicious tables."""
        self._reach(received, target, lambda: self._beside.run(RunningSubscription.catch_up_once))
        for subscription in self._subscriptions:  # one by one: each needs capture once more
            self._beside.run(partial(self._verify, received), subscriptions=[subscription])
        if waiting := [one for one in self._subscriptions if one.driver.catalog.waiting()]:
            self._beside.run(lambda one: one.driver.catalog.register_now(), subscriptions=waiting)
        # Surface a late capture error, also where nothing was left to receive.
        ends_by = time.monotonic() + _CAPTURE_END_S
        while self._capture and self._capture.check() and time.monotonic() < ends_by:
            if self._stop.wait(_POLL_S):
                return

    def _verify(self, received: ReceivedOnce, subscription: RunningSubscription) -> None:
        """Verify the suspicious tables at a current position, and copy those that differ."""
        driver = subscription.driver

        def reach(position: Lsn) -> None:
            received.start_again()
            self._reach(received, position, subscription.catch_up_once)

        if driver.looks.has_uncopied:
            self._end_writers(received, driver)
        driver.suspicious.verify_now(reach)
        if driver.copies.pending():
            driver.copies.run(stop=self._ending)
            driver.batches.drain()

    def _end_writers(self, received: ReceivedOnce, driver: SubscriptionDriver) -> None:
        """Receive the end of transactions by whose start the next run's server would decide."""
        dsn = self._reloading.config.source.conninfo
        try:
            connect_behind_publications(dsn, received, self._ending.is_set)
        except (SourceUnreachable, SourceRefused, SpoolFull) as error:
            driver.log_once(f"changes of new tables may be missing: {error}")

    def _reach(self, received: ReceivedOnce, target: Lsn, apply: Callable[[], None]) -> None:
        """Apply changes up to the target, in rounds if the spool cannot hold them at once."""
        reader = SpoolReader(self._reloading.config.spool.place)
        before: Lsn | None = None
        while not received.reached(target):
            if before == reader.frontier():
                raise received.full("no changes are left that pgsluice could apply to make room")
            before = reader.frontier()
            apply()
        apply()


@contextmanager
def capture_states(spool: Path, report: Callable[[MetricsEvent], None]) -> Iterator[None]:
    """Within this context, report each state of capture, except the last one of an earlier run."""
    ended, previous = threading.Event(), read_health(spool)

    def watch() -> None:
        nonlocal previous
        while not ended.wait(_STATES_S):
            health = read_health(spool)
            if health is None or health == previous:
                continue
            previous = health
            report(
                CaptureState(
                    health.phase,
                    Lsn.parse(health.position),
                    Lsn.parse(health.frontier),
                    health.lag_bytes,
                    health.spool_bytes,
                    health.message,
                    health.times,
                )
            )

    thread = threading.Thread(target=watch, name="pgsluice states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
