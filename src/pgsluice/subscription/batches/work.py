"""Divides a batch's tables among the tasks of a Spark job.

Starting a task takes longer than applying a small table's changes. So tables share as many tasks as
Spark runs at once, and a batch with little work is one task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pgsluice.errors import Failure
from pgsluice.shown import first_names
from pgsluice.spark.jobs.tasks import described, run_tasks, tasks_at_once
from pgsluice.subscription.base.work import Outcome, TableWork
from pgsluice.subscription.batches.tasks.apply import ApplyTables
from pgsluice.subscription.batches.tasks.shared_batch import SharedBatch

if TYPE_CHECKING:
    from pyspark import SparkContext

_A_TABLE_S = 0.01
"""The fixed time of a table, in seconds: to open, merge and commit its target."""
_BYTES_PER_S = 10e6
_A_TASK_S = 0.2
"""The amount of work that is worth a task, in seconds: starting one takes about a tenth of a
second."""


def run_works(
    context: Callable[[], SparkContext], task: ApplyTables, works: Sequence[TableWork]
) -> list[Outcome]:
    """Run tables' work: first in one Spark job, then large batches of single tables in several
    tasks.

    Args:
        works: the work of at least one table.

    Returns:
        each table's work with its outcome, in no particular order.
    """
    spark = context()
    start, end = min(work.after for work in works), max(work.through for work in works)
    titles = first_names([work.title for work in works])
    with described(spark, f"pgsluice: apply {titles} in ({start}, {end}]"):
        is_shared = tasks_at_once(spark) > 1
        batches = [SharedBatch.of(task, work) for work in works] if is_shared else []
        shared = [batch for batch in batches if batch is not None]
        large = [batch.work for batch in shared]
        outcomes = _run_each(spark, task, [work for work in works if work not in large])
        left: list[TableWork] = []
        for batch in shared:
            result = batch.run(spark)
            if result is None:
                left.append(batch.work)
            else:
                outcomes.append((batch.work, result))
        return outcomes + _run_each(spark, task, left)


def _run_each(spark: SparkContext, task: ApplyTables, works: Sequence[TableWork]) -> list[Outcome]:
    """Apply tables' work, each table in one task."""
    if not works:
        return []
    outcomes: list[Outcome] = []
    for group, results in run_tasks(spark, task.run_all, divide(works, tasks_at_once(spark))):
        each = [results] * len(group) if isinstance(results, Failure) else results
        outcomes += zip(group, each, strict=True)
    return outcomes


def divide(works: Sequence[TableWork], most_tasks: int) -> list[list[TableWork]]:
    """Divide work among tasks with about the same duration.

    Args:
        works: the work of at least one table.
        most_tasks: how many tasks run at once.
    """
    worth = math.ceil(sum(map(_seconds, works)) / _A_TASK_S)
    groups: list[list[TableWork]] = [[] for _ in range(min(most_tasks, len(works), worth))]
    seconds = [0.0] * len(groups)
    for work in sorted(works, key=_seconds, reverse=True):
        least = seconds.index(min(seconds))
        groups[least].append(work)
        seconds[least] += _seconds(work)
    return groups


def _seconds(work: TableWork) -> float:
    """The estimated duration of a table's work, in seconds."""
    return max(work.merge_s, _A_TABLE_S) + work.size_bytes / _BYTES_PER_S
