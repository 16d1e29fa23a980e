"""The thread that runs a subscription's batches, one after the other, until the run ends."""

from __future__ import annotations

import logging
import threading

from pgsluice.errors import PgsluiceError
from pgsluice.spark.errors import is_without_jvm, summarize_error
from pgsluice.subscription.running.driver import SubscriptionDriver

logger = logging.getLogger(__name__)

LONG_POLL_S = 1.0
"""How long a call waits for changes: an idle run wakes so rarely, and ends so soon."""
_RETRIES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The pauses after batches that failed one after the other; the last one repeats."""


class BatchThread(threading.Thread):
    """Runs batches until the run ends, or until another attempt is useless.

    A batch that fails for another reason is run again, a little later each time: nothing of it is
    recorded, and targets carry their own position.

    Args:
        driver: the subscription's.
        ending: set when the run ends; it ends within :data:`LONG_POLL_S` then, or when its Spark
            job is interrupted.
    """

    def __init__(self, driver: SubscriptionDriver, ending: threading.Event) -> None:
        super().__init__(name=f"pgsluice batches of {driver.subscription.name}", daemon=True)
        self._driver = driver
        self._ending = ending
        self._error: BaseException | None = None

    def run(self) -> None:
        failures, logged = 0, ""
        while not self._ending.is_set():
            try:
                if self._driver.batches.run_next(LONG_POLL_S):
                    failures, logged = 0, ""
            except BaseException as error:
                if self._ending.is_set() or not self._can_retry(error):
                    return
                pause_s = _RETRIES_S[min(failures, len(_RETRIES_S) - 1)]
                failures += 1
                why = str(error) if isinstance(error, PgsluiceError) else summarize_error(error)
                if why != logged:
                    name, logged = self._driver.subscription.name, why
                    logger.warning("%s: a batch failed; pgsluice keeps retrying: %s", name, why)
                self._ending.wait(pause_s)

    def _can_retry(self, error: BaseException) -> bool:
        try:
            self._driver.raise_failure()
            if not isinstance(error, Exception) or is_without_jvm(error):
                raise error
        except BaseException as fatal:
            self._error = fatal
            return False
        return True

    def raise_error(self) -> None:
        """Raise what ended the thread, if it was an error.

        Raises:
            BaseException: the target cannot be used, the spool has a hole, Spark's JVM is gone.
        """
        if self._error is not None:
            raise self._error
