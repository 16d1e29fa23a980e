"""What a subscription needs of Spark, in this process: jobs of tasks.

Without a JVM and its workers, many tables are applied in the time of a few. What is left out is
Spark: processes, its own failures. Tests of those use Spark. Functions are pickled
as Spark pickles them, so that tasks share nothing with the driver.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import SparkContext, cloudpickle
from tests.support.children import Child
from tests.support.waiting import HANGS_S

from pgsluice.config import load_config
from pgsluice.failpoints import arm
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.subscription.running.run import run


class LocalRDD:
    """An RDD without rows, and the function that makes rows of its partitions."""

    def __init__(self, partitions: int, function: Any = None) -> None:
        self.partitions = partitions
        self._pickled = cloudpickle.dumps(function)

    def mapPartitionsWithIndex(self, function: Any) -> LocalRDD:  # noqa: N802 - Spark's name
        return LocalRDD(self.partitions, function)

    def collect(self) -> list[Any]:
        return [
            pickle.loads(pickle.dumps(row))
            for index in range(self.partitions)
            for row in cloudpickle.loads(self._pickled)(index, iter(()))
        ]


class LocalSession:
    """A session and its context: the calls that pgsluice's subscriptions make."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.defaultParallelism = 2
        self.descriptions: list[str | None] = []

    def parallelize(self, _: list[Any], partitions: int) -> LocalRDD:
        return LocalRDD(partitions)

    def addJobTag(self, _: str) -> None:  # noqa: N802 - Spark's name, like those below
        """Tasks end by themselves."""

    removeJobTag = cancelJobsWithTag = addJobTag  # noqa: N815

    def getLocalProperty(self, _: str) -> str | None:  # noqa: N802
        return self.descriptions[-1] if self.descriptions else None

    def setJobDescription(self, description: str | None) -> None:  # noqa: N802
        self.descriptions.append(description)


def context_of(session: LocalSession) -> ContextOnDemand:
    """A context in this process."""
    return ContextOnDemand(lambda: cast("SparkContext", session))


@pytest.fixture
def local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process use a :class:`LocalSession`."""
    use_local_spark(monkeypatch)


def use_local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs of this process use a :class:`LocalSession`."""
    module = "pgsluice.subscription.running.session"
    monkeypatch.setattr(f"{module}.build_session", lambda *_: LocalSession())
    # A session that runs already: otherwise each run would start a JVM beside it.
    monkeypatch.setattr(f"{module}.running_session", LocalSession)


def run_killed_at(config: Path, failpoint: str) -> int | None:
    """``pgsluice run --once`` in a process that a failpoint kills; its exit code."""
    return Child(_run_to, config, failpoint).wait(HANGS_S)


def _run_to(config: Path, failpoint: str) -> None:
    use_local_spark(pytest.MonkeyPatch())
    arm(f"{failpoint}=kill")
    run(load_config(config), once=True)
