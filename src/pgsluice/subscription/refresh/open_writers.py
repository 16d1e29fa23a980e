"""New tables that are not copied, and transactions that wrote to them before they were published.

Some servers send no change of such a table as long as the connection lasts (ADR 0056). A copy takes
its snapshot behind a new connection; with ``copy_data = false`` there is no copy. So capture
connects again here, as soon as the transactions that are open now have ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.subscription.base.received import Received, connect_behind_publications
from pgsluice.system.threads import WorkThread

logger = logging.getLogger(__name__)

_RETRY_S = 30.0
"""The pause after a transaction stayed open, or the server could not be reached, in seconds."""


class OpenWriters:
    """Has capture connect again for new tables that are not copied.

    The tables are kept in memory only: a run that is killed connects again anyway.

    Args:
        received: the run's capture.
        log: called with the reason why it cannot be done at the moment, and with None as soon as it
            can; logs each reason once.
    """

    def __init__(
        self, config: Config, received: Received, log: Callable[[str | None], None]
    ) -> None:
        self._dsn = config.source.conninfo
        self._received = received
        self._log = log
        self._lock = threading.Lock()
        self._titles: frozenset[str] = frozenset()
        self._thread: WorkThread | None = None
        self._stopped = threading.Event()
        self._retry_at = 0.0

    def add(self, titles: Iterable[str]) -> None:
        """New tables that a catalog refresh found; from any thread."""
        with self._lock:
            self._titles |= frozenset(titles)

    def tend(self) -> None:
        """Connect again in a separate thread, if there are new tables; returns at once.

        Raises:
            BaseException: the error that ended the thread, unless it may be temporary.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        ended, self._thread = self._thread, None
        if ended is not None:
            ended.raise_error()
        if self._titles and time.monotonic() >= self._retry_at:
            self._thread = WorkThread("pgsluice open writers", self.connect_now)
            self._thread.start()

    def connect_now(self) -> None:
        """Wait for the transactions that are open, and connect again; a failure is logged."""
        titles = self._titles
        if not titles:
            return
        try:
            is_done = connect_behind_publications(self._dsn, self._received, self._stopped.is_set)
        except PgsluiceError as error:
            if not self._stopped.is_set():
                self._log(f"changes of {', '.join(sorted(titles))} may not be sent yet: {error}")
            self._retry_at = time.monotonic() + _RETRY_S
            return
        if is_done:
            self._log(None)
            logger.info("changes of %s that commit from now on are sent", ", ".join(sorted(titles)))
            with self._lock:
                self._titles -= titles

    def stop(self) -> None:
        """Give up."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
