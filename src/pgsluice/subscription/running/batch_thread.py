"""The thread that runs a subscription's batches, one after the other, until the run ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from pgsluice.errors import PgsluiceError
from pgsluice.events import BatchFailed
from pgsluice.spark.errors import is_without_jvm, summarize_error
from pgsluice.subscription.running.driver import SubscriptionDriver
from pgsluice.system.threads import Backoff, WorkThread

logger = logging.getLogger(__name__)

LONG_POLL_S = 1.0
"""How long a call waits for changes, in seconds: an idle run wakes up this rarely, and stops this
soon."""
_RETRIES_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class BatchThread(WorkThread):
    """Runs batches until the run ends, or until another attempt would be useless.

    A batch that fails for another reason is run again, with growing pauses: nothing of it was
    recorded, and targets store their own position.

    Args:
        driver: the subscription's driver.
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
                self._refuse_useless(error)
                why = str(error) if isinstance(error, PgsluiceError) else summarize_error(error)
                self._driver.report(BatchFailed(self._driver.subscription.name, why))
                if why != logged:
                    name, logged = self._driver.subscription.name, why
                    logger.warning("%s: a batch failed; pgsluice keeps retrying: %s", name, why)
                self._ending.wait(backoff.failed())

    def _refuse_useless(self, error: BaseException) -> None:
        """Raise an error after which another attempt would be useless.

        Raises:
            BaseException: the target cannot be used, the spool has a hole, Spark's JVM is gone.
        """
        self._driver.raise_failure()
        if not isinstance(error, Exception) or is_without_jvm(error):
            raise error
