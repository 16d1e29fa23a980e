"""A Spark session that is started when it is first needed, and its context before it.

Jobs of tasks need the context only. A session's own classes take the JVM nearly as long as the
context, so the first tables are copied while they are loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")


class SessionOnDemand:
    """Gives the session, or its context; several threads may ask for them.

    Args:
        start: gives the session, and starts it if nobody has; called once.
        start_context: gives the context in the same way; None: it is the session's. If one of the
            two raises, all who ask for it get its error.
        look_after: see below; it neither waits nor raises.

    Attributes:
        look_after: called several times a second; says what of the session has ended.
    """

    def __init__(
        self,
        start: Callable[[], SparkSession],
        start_context: Callable[[], SparkContext] | None = None,
        look_after: Callable[[], None] = lambda: None,
    ) -> None:
        self.look_after = look_after
        self._session = _Once(start)
        self._context = _Once(start_context or (lambda: self._session().sparkContext))

    def __call__(self) -> SparkSession:
        self._context()  # it is there first
        return self._session()

    def context(self) -> SparkContext:
        """The context, in which jobs of tasks run."""
        return self._context()

    @property
    def running(self) -> SparkContext | None:
        """The context; None while nobody has asked for it."""
        return self._context.result


class _Once(Generic[T]):
    """A call that is made once, whoever asks for its result.

    Attributes:
        result: None while nobody has asked for it.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self.result: T | None = None
        self._call = call
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(self) -> T:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.result is None:
                try:
                    self.result = self._call()
                except BaseException as error:
                    self._error = error
                    raise
            return self.result
