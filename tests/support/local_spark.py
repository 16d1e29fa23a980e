"""What a subscription needs of Spark, in this process: jobs of tasks, and a streaming query.

Without a JVM and its workers, many tables are applied in the time of a few. What is left out is
Spark: checkpoints, processes, its own failures. Tests of those use Spark. Functions are pickled
as Spark pickles them, so that tasks share nothing with the driver.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.datasource import ReadAllAvailable

Batches = Callable[[], Iterator[pa.RecordBatch]]


class LocalFrame:
    """A DataFrame: the batches of its partitions."""

    def __init__(self, partitions: Sequence[Batches]) -> None:
        self._partitions = partitions

    def collect(self) -> list[Row]:
        return [
            Row(**values)
            for batches in self._partitions
            for batch in batches()
            for values in batch.to_pylist()
        ]


class LocalRDD:
    """An RDD without rows, and the function that makes rows of its partitions."""

    def __init__(self, partitions: int, function: Any = None) -> None:
        self._partitions = partitions
        self._pickled = cloudpickle.dumps(function)

    def mapPartitionsWithIndex(self, function: Any) -> LocalRDD:  # noqa: N802 - Spark's name
        return LocalRDD(self._partitions, function)

    def collect(self) -> list[Any]:
        return [
            pickle.loads(pickle.dumps(row))
            for index in range(self._partitions)
            for row in cloudpickle.loads(self._pickled)(index, iter(()))
        ]


class LocalQuery:
    """A streaming query, in a thread; a batch begins where the one before it ended."""

    def __init__(self, reader: Any, apply: Any, *, once: bool) -> None:
        self._reader = reader
        self._apply = apply
        self._once = once
        self._is_to_stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name, like those below
        return self._thread.is_alive()

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        self._thread.join(timeout)
        return not self.isActive

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self._is_to_stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._run_batches()
        except Exception as error:
            self._error = error

    def _run_batches(self) -> None:
        start, number = self._reader.initialOffset(), 0
        if self._once:
            self._reader.prepareForTriggerAvailableNow()
        while not self._is_to_stop.is_set():
            end = self._reader.latestOffset(start, ReadAllAvailable())
            if end == start and self._once:
                return
            if end != start:
                partitions = self._reader.partitions(start, end)
                reads = [partial(self._reader.read, partition) for partition in partitions]
                self._apply(LocalFrame(reads), number)
                start, number = end, number + 1


class LocalSession:
    """A session: the calls that pgsluice's subscriptions make."""

    def __init__(self) -> None:
        self.dataSource = self
        self.readStream = self
        self.sparkContext = self
        self.defaultParallelism = 2
        self.descriptions: list[str | None] = []
        self._sources: dict[str, type[DataSource]] = {}

    def register(self, source: type[DataSource]) -> None:
        self._sources[source.name()] = source

    def parallelize(self, _: list[Any], partitions: int) -> LocalRDD:
        return LocalRDD(partitions)

    def format(self, name: str) -> _Stream:
        return _Stream(self._sources[name])

    def addJobTag(self, _: str) -> None:  # noqa: N802 - Spark's name, like those below
        """Tasks end by themselves."""

    removeJobTag = cancelJobsWithTag = addJobTag  # noqa: N815

    def getLocalProperty(self, _: str) -> str | None:  # noqa: N802
        return self.descriptions[-1] if self.descriptions else None

    def setJobDescription(self, description: str | None) -> None:  # noqa: N802
        self.descriptions.append(description)


class _Stream:
    """A stream from its source to its start; each call returns the same object."""

    def __init__(self, source: type[DataSource]) -> None:
        self.writeStream = self
        self._source = source
        self._options: dict[str, str] = {}
        self._apply: Any = None
        self._once = False

    def option(self, name: str, value: str) -> _Stream:
        self._options[name] = value
        return self

    def load(self) -> _Stream:
        return self

    def queryName(self, _: str) -> _Stream:  # noqa: N802 - Spark's name, like that below
        return self

    def foreachBatch(self, apply: Any) -> _Stream:  # noqa: N802
        self._apply = apply
        return self

    def trigger(self, *, availableNow: bool) -> _Stream:  # noqa: N803
        self._once = availableNow
        return self

    def start(self) -> LocalQuery:
        source = self._source(self._options)
        reader = source.streamReader(source.schema())
        return LocalQuery(reader, self._apply, once=self._once)


@pytest.fixture
def local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process use a :class:`LocalSession`."""
    use_local_spark(monkeypatch)


def use_local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs of this process use a :class:`LocalSession`."""
    module = "pgsluice.subscription.run_session"
    monkeypatch.setattr(f"{module}.build_session", lambda *_: LocalSession())
    # A session that runs already: otherwise each run would start a JVM beside it.
    monkeypatch.setattr(f"{module}._running_session", LocalSession)
