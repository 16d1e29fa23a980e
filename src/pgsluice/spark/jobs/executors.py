"""Runs one function on each executor, also where an executor lacks what the function imports."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pgsluice.errors import SparkFailed
from pgsluice.spark.errors import spark_errors, summarize_error

if TYPE_CHECKING:
    from pyspark import SparkContext

_WAIT_S = 60.0
"""How long executors may take to start, in seconds."""
_STEADY_S = 2.0
"""After this time without a further executor, in seconds, all are there."""
_POLL_S = 0.2
_TASK_S = 1.0
"""How long a task takes at least, in seconds: so the tasks spread over all executors."""

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ExecutorAnswer:
    """The result of one executor.

    Attributes:
        host: its machine.
        result: the function's result; None if it could not be imported.
        lacks: why it could not be imported.
    """

    host: str
    result: Any = None
    lacks: str | None = None


def ask_executors(context: SparkContext, run: Callable[[W], R], work: W) -> list[ExecutorAnswer]:
    """Run a function once on each executor.

    Args:
        run: a function of a module, which executors import.

    Raises:
        SparkFailed: no executor starts, or they cannot run Python.
    """
    _await_executors(context)
    payload = pickle.dumps((run, work))
    seconds = _TASK_S

    # Pickled by value: it must not need any module of ours before it can say that one is missing.
    def answer(_task: int, rows: Any) -> Iterator[tuple[str, str, Any, str | None]]:
        import pickle
        import socket
        import time
        from pathlib import Path

        list(rows)
        time.sleep(seconds)
        place = (socket.gethostname(), str(Path.cwd()))
        try:
            function, given = pickle.loads(payload)  # noqa: S301 - the driver's own
        except Exception as error:
            yield (*place, None, f"{type(error).__name__}: {error}")
            return
        yield (*place, function(given), None)

    tasks = max(1, int(context.defaultParallelism))
    try:
        answers = context.parallelize([], tasks).mapPartitionsWithIndex(answer).collect()
    except spark_errors() as error:
        raise SparkFailed(
            f"Spark's executors cannot run a task: {summarize_error(error)}",
            hint="install the driver's version of Python on every executor, at the path in the "
            "environment variable PYSPARK_PYTHON",
        ) from error
    # Executors on one machine have their own working folders.
    each = {(host, folder): (result, lacks) for host, folder, result, lacks in answers}
    return [ExecutorAnswer(host, *found) for (host, _), found in sorted(each.items())]


def _await_executors(context: SparkContext) -> None:
    status = context._jsc.sc().statusTracker()
    count, changed_at = 0, time.monotonic()
    deadline = changed_at + _WAIT_S
    while (now := time.monotonic()) < deadline:
        found = len(status.getExecutorInfos()) - 1  # the driver is among them
        if found != count:
            count, changed_at = found, now
        if count and now - changed_at >= _STEADY_S:
            return
        time.sleep(_POLL_S)
    raise SparkFailed(
        f"Spark has not started an executor within {_WAIT_S:.0f} s",
        hint="check that Spark's master has workers with free cores and memory",
    )
