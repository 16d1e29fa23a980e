"""Runs functions as Spark tasks. Work and results are pickled, and so is the function.

If a piece of work fails, its result is a :class:`~pgsluice.errors.Failure`, and the others
continue.

The jobs use an RDD. For a DataFrame, Spark would first analyse, optimise, plan and compile a query,
which takes longer than applying the changes of most batches.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import uuid4

from pgsluice.errors import ConfigError, Failure, SparkFailed
from pgsluice.spark.jobs.lost_workers import DESCRIPTION, again_in_stage, say_all_lost, say_lost
from pgsluice.spark.jobs.shared_folders import marks, why_unseen
from pgsluice.spark.jobs.totals import count
from pgsluice.system.machine import begin_task

if TYPE_CHECKING:
    from pyspark import SparkContext

_JOB_TAG = "pgsluice"

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
        run: the function from work to result; Spark pickles it.
        most_tasks: the largest number of tasks; None: one for each piece of work.

    Raises:
        ConfigError: an executor does not see a folder that it has to share.
        SparkFailed: Spark returned other results than those of the job.

    Returns:
        each piece of work with its result or failure, in the order of the work.
    """
    if not works:
        return []

    tasks = min(len(works), most_tasks or len(works))
    driver, shared, job = socket.gethostname(), marks(), uuid4().hex

    def outcomes(
        task: int, rows: Iterable[object]
    ) -> Iterator[tuple[str, int, R | Failure | ConfigError, int | None]]:
        begin_task(driver)
        list(rows)  # there are none; Spark uses a worker again only if it has read its input
        stage = again_in_stage()
        if (missing := why_unseen(shared)) is not None:
            yield job, task, missing, stage
            return
        for index in range(task, len(works), tasks):
            yield job, index, attempt(run, works[index]), stage

    count(jobs=1, tasks=tasks)
    context.addJobTag(_JOB_TAG)
    try:
        results = context.parallelize([], tasks).mapPartitionsWithIndex(outcomes).collect()
    except Exception as error:
        count(job_failures=1)
        say_all_lost(context, error)
        raise
    finally:
        context.removeJobTag(_JOB_TAG)
    stages = [stage for _, _, _, stage in results]
    count(task_retries=sum(stage is not None for stage in stages))
    say_lost(context, stages)
    done: dict[int, R | Failure] = {}
    for of_job, index, result, _ in results:
        if of_job != job:
            continue
        if isinstance(result, ConfigError):
            raise result
        done[index] = result
    # Never seen. Results of another job would be taken for this one's, and the target lose changes.
    if len(done) < len(works) or len(results) != len(works):
        raise SparkFailed(
            f"Spark returned {len(done)} of the {len(works)} results of a job, and "
            f"{len(results) - len(done)} results of other jobs",
            hint="nothing to do: pgsluice starts Spark again, and asks each target what was "
            "applied",
        )
    return [(work, done[index]) for index, work in enumerate(works)]


@contextmanager
def described(context: SparkContext, description: str) -> Iterator[None]:
    """A context in which this thread's jobs have a description, for Spark's UI and listeners."""
    before = context.getLocalProperty(DESCRIPTION)
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.setJobDescription(cast("str", before))  # None: there was none


def interrupt_tasks(context: SparkContext) -> None:
    """End the running jobs of :func:`run_tasks`; each raises an error in its caller."""
    context.cancelJobsWithTag(_JOB_TAG)
