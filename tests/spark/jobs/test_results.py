"""The results of a job are its own, and complete."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark import SparkContext
from tests.support.local_spark import LocalRDD, LocalSession

from pgsluice.errors import SparkFailed
from pgsluice.spark.jobs.tasks import run_tasks


class _Mixed(LocalSession):
    """Returns the results of the job before instead of a job's own, or some of them."""

    def __init__(self, *, lost: int = 0) -> None:
        super().__init__()
        self.collected: list[list[Any]] = []
        self.lost = lost

    def parallelize(self, _: list[Any], partitions: int) -> LocalRDD:
        return _RDD(partitions, self)


class _RDD(LocalRDD):
    def __init__(self, partitions: int, session: _Mixed, function: Any = None) -> None:
        super().__init__(partitions, function)
        self._session = session

    def mapPartitionsWithIndex(self, function: Any) -> LocalRDD:  # noqa: N802 - Spark's name
        return _RDD(self.partitions, self._session, function)

    def collect(self) -> list[Any]:
        found = self._session.collected
        found.append(super().collect())
        return found[0][self._session.lost :]


def test_results_of_another_job() -> None:
    context = cast("SparkContext", _Mixed())
    assert sorted(run_tasks(context, str, [1, 2])) == [(1, "1"), (2, "2")]
    with pytest.raises(SparkFailed, match="0 of the 2 results of a job, and 2 results"):
        run_tasks(context, str, [3, 4])


def test_lost_results() -> None:
    with pytest.raises(SparkFailed, match="1 of the 2 results of a job, and 0 results"):
        run_tasks(cast("SparkContext", _Mixed(lost=1)), str, [1, 2])
