"""The Spark session of a run: the user's, or its own, which it replaces after a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pgsluice.config import Config
from pgsluice.errors import SparkFailed
from pgsluice.events import MetricsEvent, RunStep
from pgsluice.spark.session.session import build_session, refuse_spark_errors
from pgsluice.spark.session.starting_context import ContextOnDemand, StartingContext
from pgsluice.spool.layout import SPARK_LOG
from pgsluice.system.processes import Part, say_next

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_DAEMON = "pgsluice.subscription.running.daemon"
_SETTINGS = {"spark.python.daemon.module": _DAEMON}
_SESSIONS = 3
"""How many sessions in a row may fail without progress before the run ends."""


class RunSession:
    """The session of a run; a context manager that ends the run's own session.

    Args:
        owns_process: nothing else uses Spark in this process, which makes the start faster.

    Attributes:
        is_ours: the run has its own session, because the process had none.
    """

    def __init__(
        self, config: Config, report: Callable[[MetricsEvent], None], *, owns_process: bool
    ) -> None:
        self.is_ours = running_session() is None
        self._config = config
        self._report = report
        self._owns_process = owns_process
        self._settings = {**_SETTINGS, **config.spark}
        self._starting = self._new()

    def __enter__(self) -> RunSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._starting.end()

    def begin(self) -> None:
        """Start the run's own session in the background."""
        if self.is_ours:
            self._starting.begin()

    @contextmanager
    def session(self, look: Callable[[], None]) -> Iterator[ContextOnDemand]:
        """A session that is valid within the context; after a failed one, a new one.

        Args:
            look: called a few times per second while the session starts; it may raise.
        """
        if not self.is_ours:
            with explained():
                yield ContextOnDemand(
                    lambda: build_session(self._settings, "pgsluice").sparkContext
                )
            return
        if self._starting.has_ended:  # another one is needed, and starts at once
            self._starting = self._new()
            self._starting.begin()
        starting = self._starting

        def context() -> SparkContext:
            self._report(RunStep("starting Spark"))
            context = starting.wait(look)
            self._report(RunStep(""))
            return context

        try:
            with explained():
                yield ContextOnDemand(context, starting.look_after)
        except SparkFailed:
            starting.forget()
            raise
        finally:
            starting.end()

    def _new(self) -> StartingContext:
        log = self._config.spool.folder / SPARK_LOG
        is_daemon_ours = self._settings["spark.python.daemon.module"] == _DAEMON
        return StartingContext(
            self._settings,
            "pgsluice",
            log,
            owns_process=self._owns_process,
            daemon=_DAEMON if is_daemon_ours else None,
        )


def restarting(
    session: Callable[[], AbstractContextManager[ContextOnDemand]],
    work: Callable[[ContextOnDemand], None],
    reached: Callable[[], object],
    *,
    is_ours: bool,
) -> None:
    """Call ``work`` with a session, and again with a new session when one fails: no data is lost.

    Args:
        session: gives a session, which starts when it is needed.
        reached: returns the progress; a session that made progress counts as working.
        is_ours: the session is this run's own, and not the user's.

    Raises:
        SparkFailed: several sessions in a row made no progress, or the session is the user's.
    """
    failures, before = 0, reached()
    while True:
        try:
            with session() as spark:
                work(spark)
        except SparkFailed as error:
            now = reached()
            failures, before = (1 if now != before else failures + 1), now
            if not is_ours or failures >= _SESSIONS:
                raise
            say_next(Part.JVM, error.what)
        else:
            return


def running_session() -> SparkSession | None:
    """The session that already runs in this process: that of a notebook or a platform."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    # A session that was started in another thread is not active in this thread.
    return SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)


@contextmanager
def explained() -> Iterator[None]:
    """A context that turns errors which Spark caused into SparkFailed.

    Raises:
        SparkFailed: the JVM has ended, or a job failed.
    """
    try:
        yield
    except Exception as error:
        refuse_spark_errors(error)
        raise
