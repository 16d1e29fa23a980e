"""The threads of a run's subscriptions, and the watch over capture and Spark meanwhile.

Nothing here waits for a subscription: each works in its own thread. So even while rows are copied
for hours, a killed capture is restarted, and an error of capture ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pgsluice.capture import CaptureElsewhere, CaptureProcess
from pgsluice.spark.jobs.tasks import interrupt_tasks
from pgsluice.spark.session.on_demand import ContextOnDemand
from pgsluice.spark.session.session import raise_if_ended
from pgsluice.subscription.running.turns import TURN_S, RunningSubscription
from pgsluice.system.threads import WorkThread

_END_S = 1.0
"""How long a subscription may take to end before it is interrupted again, in seconds."""


class SideBySide:
    """Lets the subscriptions of a run work at the same time.

    Args:
        session: Spark's context.
        subscriptions: all subscriptions of the run.
        stop: set when the user asks the run to stop.
        ending: set here when the run ends; all work then ends soon.
    """

    def __init__(
        self,
        session: ContextOnDemand,
        capture: CaptureProcess | CaptureElsewhere,
        subscriptions: Sequence[RunningSubscription],
        stop: threading.Event,
        ending: threading.Event,
    ) -> None:
        self._session = session
        self._capture = capture
        self._subscriptions = subscriptions
        self._stop = stop
        self._ending = ending

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
            subscriptions: the subscriptions; None: all.

        Raises:
            BaseException: the first error of capture, of Spark or of the work.
        """
        if self._stop.is_set():
            return
        threads = [
            WorkThread(f"pgsluice {running.driver.subscription.name}", partial(work, running))
            for running in subscriptions or self._subscriptions
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
                if self._stop.wait(min(TURN_S, max(0.01, pause_s))):
                    return
            self._look_after(threads)
        except BaseException:
            self._ending.set()
            raise
        finally:
            self._end(threads)

    def _look_after(self, threads: Sequence[WorkThread]) -> None:
        raise_if_ended()
        self._session.look_after()
        self._capture.check()
        for thread in threads:
            thread.raise_error()

    def _end(self, threads: Sequence[WorkThread]) -> None:
        """Interrupt what still runs, and wait for its end."""
        running = self._subscriptions

        def is_working() -> bool:
            return any(one.is_alive() for one in threads) or any(one.is_working for one in running)

        if is_working():
            self._ending.set()
        if not self._ending.is_set():
            return
        for subscription in running:
            subscription.driver.catalog.stop()
        while True:
            # Only jobs of this run's threads: afterwards, the session is its owner's again.
            with suppress(Exception):  # Spark has ended, or cannot be reached any more
                context = self._session.running
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
