"""Runs work as Spark tasks. Work and results travel pickled, as the function that runs it does.

A piece of work that fails has a :class:`~pgsluice.errors.Failure` instead of a result, and the
others go on.

The jobs are those of an RDD. Of a DataFrame, Spark would first analyse, optimise, plan and compile
a query, which takes longer than the changes of most batches.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from pgsluice.errors import Failure
from pgsluice.machine import begin_task
from pgsluice.spark.jobs.lost_workers import DESCRIPTION, again_in_stage, say_all_lost, say_lost

if TYPE_CHECKING:
    from pyspark import SparkContext

_JOB_TAG = "pgsluice"
_MOST_NAMES = 5

W = TypeVar("W")
R = TypeVar("R")


def attempt(run: Callable[[W], R], work: W) -> R | Failure:
    """Run one piece of work; any error becomes a failure."""
    try:
        return run(work)
    except Exception as error:
        return Failure.of(error)


def tasks_at_once(context: SparkContext) -> int:
    """How many tasks Spark runs at the same time."""
    return int(context.defaultParallelism)


def run_tasks(
    context: SparkContext,
    run: Callable[[W], R],
    works: Sequence[W],
    *,
    most_tasks: int | None = None,
) -> list[tuple[W, R | Failure]]:
    """Run work in one Spark job.

    Args:
        run: turns work into a result; Spark pickles it.
        most_tasks: the largest number of tasks; None: each piece of work has its own.

    Returns:
        each piece of work with what became of it, in no particular order.
    """
    if not works:
        return []

    tasks = min(len(works), most_tasks or len(works))
    driver = socket.gethostname()

    def outcomes(
        task: int, rows: Iterable[object]
    ) -> Iterator[tuple[int, R | Failure, int | None]]:
        begin_task(driver)
        list(rows)  # there are none; Spark uses a worker again only if it has read its input
        stage = again_in_stage()
        for index in range(task, len(works), tasks):
            yield index, attempt(run, works[index]), stage

    context.addJobTag(_JOB_TAG)
    try:
        results = context.parallelize([], tasks).mapPartitionsWithIndex(outcomes).collect()
    except Exception as error:
        say_all_lost(context, error)
        raise
    finally:
        context.removeJobTag(_JOB_TAG)
    say_lost(context, (stage for _, _, stage in results))
    return [(works[index], result) for index, result, _ in results]


@contextmanager
def described(context: SparkContext, description: str) -> Iterator[None]:
    """A block in which this thread's jobs have a description, for Spark's UI and listeners."""
    before = context.getLocalProperty(DESCRIPTION)
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.setJobDescription(cast("str", before))  # None: there was none


def names_of(titles: Sequence[str]) -> str:
    """Tables' names for a description: the first ones, and how many there are."""
    shown = ", ".join(titles[:_MOST_NAMES])
    return shown if len(titles) <= _MOST_NAMES else f"{shown} and {len(titles) - _MOST_NAMES} more"


def interrupt_tasks(context: SparkContext) -> None:
    """End the jobs of :func:`run_tasks` that run now; each raises an error where it was started."""
    context.cancelJobsWithTag(_JOB_TAG)
