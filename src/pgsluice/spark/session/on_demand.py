"""A Spark context that starts when it is first needed. Jobs of tasks need no session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


class ContextOnDemand:
    """Returns the context; thread-safe.

    Args:
        start: starts the context and returns it; called once. If it raises, all callers get its
            error.
        look_after: see below; it must neither wait nor raise.

    Attributes:
        look_after: called several times a second; logs what has ended of Spark's processes.
        running: the context; None until it has started.
    """

    def __init__(
        self, start: Callable[[], SparkContext], look_after: Callable[[], None] = lambda: None
    ) -> None:
        self.look_after = look_after
        self.running: SparkContext | None = None
        self._start = start
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkContext:
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
