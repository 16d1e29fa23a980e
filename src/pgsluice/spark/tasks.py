"""Runs work as Spark tasks. Work and results travel pickled, as the function that runs it does.

A piece of work that fails has a :class:`~pgsluice.errors.Failure` instead of a result, and the
others go on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from pgsluice.errors import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

W = TypeVar("W")
R = TypeVar("R")


def attempt(run: Callable[[W], R], work: W) -> R | Failure:
    """Run one piece of work; any error becomes a failure."""
    try:
        return run(work)
    except Exception as error:
        return Failure.of(error)


def run_frame(frame: DataFrame, run: Callable[[W], R]) -> list[tuple[W, R | Failure]]:
    """Run a frame whose only column is pickled work.

    Args:
        frame: one row for each piece of work.
        run: turns work into a result; Spark pickles it.

    Returns:
        each piece of work with what became of it, in no particular order.
    """

    def outcomes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            works = [pickle.loads(row) for row in batch.column(0).to_pylist()]  # noqa: S301 - ours
            yield _run_all(run, works)

    return _collect(frame, outcomes)


def run_tasks(
    spark: SparkSession,
    run: Callable[[W], R],
    works: Sequence[W],
    *,
    most_tasks: int | None = None,
) -> list[tuple[W, R | Failure]]:
    """Run work in one Spark job; like :func:`run_frame`.

    Args:
        run: turns work into a result; Spark pickles it.
        most_tasks: the largest number of tasks; None: each piece of work has its own.
    """
    if not works:
        return []

    def outcomes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _run_all(run, [works[index] for index in batch.column(0).to_pylist()])

    tasks = min(len(works), most_tasks or len(works))
    return _collect(spark.range(0, len(works), 1, tasks), outcomes)


def _run_all(run: Callable[[W], R], works: Sequence[W]) -> pa.RecordBatch:
    outcomes = [pickle.dumps((work, attempt(run, work))) for work in works]
    return pa.record_batch([pa.array(outcomes, pa.binary())], names=["outcome"])


def _collect(frame: DataFrame, outcomes: Callable[..., Iterator[pa.RecordBatch]]) -> list[Any]:
    rows = frame.mapInArrow(outcomes, "outcome binary").collect()
    return [pickle.loads(row[0]) for row in rows]  # noqa: S301 - our own tasks wrote it
