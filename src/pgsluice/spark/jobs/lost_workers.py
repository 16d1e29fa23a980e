"""Logs which tasks Spark retried because it lost the worker that ran them.

Spark retries a task silently: if the system kills workers for lack of memory, batch after batch,
the user would only notice that everything is slow. A task knows that it is a later attempt, and
Spark's status store knows why the earlier one failed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pgsluice.spark.errors import spark_errors, summarize_error
from pgsluice.spark.jobs.totals import count

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

DESCRIPTION = "spark.job.description"
_HINT = (
    "if it happens again, the machine may lack memory (then dmesg names the process): give it "
    'more, or have Spark run fewer tasks at once ("spark.master" in [spark])'
)
_CRASHED = "Python worker exited unexpectedly"
"""Spark's message about a killed worker."""
_MOST_TASKS = 1000
_EVENTS_MS = 10_000
"""How long Spark's status store may need to receive earlier events, in milliseconds."""
_CLASS = re.compile(r"^[\w.$]+: ")
"""The Java name of an exception, before its message."""


def again_in_stage() -> int | None:
    """Called within a task: its stage id if an earlier attempt of the task failed; else None."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return None if task is None or not task.attemptNumber() else int(task.stageId())


def say_lost(context: SparkContext, stages: Iterable[int | None]) -> None:
    """Log why tasks of this thread's jobs were retried.

    Args:
        stages: the result of :func:`again_in_stage` for each task.
    """
    lost = sorted({stage for stage in stages if stage is not None})
    if not lost:
        return
    with suppress(*spark_errors()):  # that the JVM has ended is said by others
        failures = [reason for stage in lost for reason in _reasons(context, stage)]
        count(workers_lost=sum(_CRASHED in reason for reason in failures))
        reasons = dict.fromkeys(failures)
        why = "; ".join(reasons) or "Spark gives no reason"
        retried = "Spark lost a worker and retries its tasks: %s (%s)\n  → %s"
        logger.warning(retried, _work(context), why, _HINT)


def say_all_lost(context: SparkContext, error: Exception) -> None:
    """Log if a job of this thread failed because Spark lost all workers that started a task."""
    with suppress(*spark_errors()):
        if _CRASHED not in str(error):
            return
        count(workers_lost=1)
        logger.warning("Spark lost every worker that tried to %s\n  → %s", _work(context), _HINT)


def _work(context: SparkContext) -> str:
    """The description of this thread's jobs, such as ``apply public.t``."""
    return (context.getLocalProperty(DESCRIPTION) or "work").removeprefix("pgsluice: ")


def _reasons(context: SparkContext, stage: int) -> Iterator[str]:
    """Why attempts of a stage's tasks failed, in one line each."""
    spark: Any = context._jsc.sc()
    with suppress(*spark_errors()):  # it has not by then: what it knows is said
        spark.listenerBus().waitUntilEmpty(_EVENTS_MS)
    tasks = spark.statusStore().taskList(stage, 0, _MOST_TASKS)
    for number in range(tasks.size()):
        message = tasks.apply(number).errorMessage()
        if message.isDefined():
            sentence = _CLASS.sub("", summarize_error(Exception(message.get())))
            yield sentence.partition(". ")[0]  # then comes advice about Spark's settings
