"""Runs work as Spark tasks. Work and results travel pickled, as the function that runs it does.

A piece of work that fails has a :class:`~pgsluice.errors.Failure` instead of a result, and the
others go on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from pgsluice.errors import Failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

W = TypeVar("W")
R = TypeVar("R")


def attempt(run: Callable[[W], R], work: W) -> R | Failure:
    """Run one piece of work; any error becomes a failure."""
    try:
        return run(work)
    except Exception as error:
        return Failure.of(error)


def tasks_at_once(spark: SparkSession) -> int:
    """How many tasks the session runs at the same time."""
    return int(spark.sparkContext.defaultParallelism)


def run_tasks(
    spark: SparkSession,
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

    def outcomes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            indices = batch.column(0).to_pylist()
            pickled = [pickle.dumps((index, attempt(run, works[index]))) for index in indices]
            yield pa.record_batch([pa.array(pickled, pa.binary())], names=["outcome"])

    tasks = min(len(works), most_tasks or len(works))
    frame = spark.range(0, len(works), 1, tasks).mapInArrow(outcomes, "outcome binary")
    results = [pickle.loads(row[0]) for row in frame.collect()]  # noqa: S301 - our own tasks wrote it
    return [(works[index], result) for index, result in results]
