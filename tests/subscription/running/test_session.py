"""Sessions of a run that fail are replaced, but not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError

from pgsluice.errors import SinkError, SparkFailed
from pgsluice.subscription.running.session import explained, restarting


@pytest.mark.parametrize(
    ("is_ours", "comes_further", "sessions"), [(True, False, 3), (False, False, 1), (True, True, 9)]
)
def test_sessions_that_fail_and_come_no_further_are_replaced_twice(
    is_ours: bool, comes_further: bool, sessions: int
) -> None:
    begun: list[str] = []

    @contextmanager
    def session() -> Iterator[Any]:
        begun.append("session")
        if len(begun) == 9:
            raise SinkError("no lake")
        if len(begun) % 2:
            raise SparkFailed("Spark's JVM ended while it started")
        yield None

    def work(_: object) -> None:
        raise SparkFailed("a Spark job failed")

    with pytest.raises((SparkFailed, SinkError)):
        restarting(session, work, lambda: len(begun) * comes_further, is_ours=is_ours)
    assert len(begun) == sessions


@pytest.mark.parametrize(
    "error",
    [
        PySparkRuntimeError("a worker was killed"),
        Py4JError("no answer"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_what_spark_fails_asks_for_another_session(error: Exception) -> None:
    """As where a worker could not connect back in time while rows were copied first, or where the
    JVM is gone and py4j cannot open a connection for a new thread."""
    with pytest.raises(SparkFailed, match=r"a Spark job failed: .+"), explained():
        raise error


def test_a_fault_of_ours_asks_for_none() -> None:
    """It would be there again."""
    with pytest.raises(AssertionError), explained():
        raise AssertionError("a bug")
