"""A Spark session that is started when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionOnDemand:
    """Gives the session; several threads may ask for it.

    Args:
        start: starts it; called once. If it raises, all who ask get its error.

    Attributes:
        running: the session; None while nobody has asked for it.
    """

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self.running: SparkSession | None = None
        self._start = start
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.running is None:
                try:
                    self.running = self._start()
                except BaseException as error:
                    self._error = error
                    raise
            return self.running
