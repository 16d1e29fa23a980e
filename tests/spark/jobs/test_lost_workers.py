"""Workers of Spark that are killed while they work: a line says what they worked at."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import TaskContext

from pgsluice.spark.errors import spark_errors
from pgsluice.spark.jobs.tasks import described, run_tasks


def killed_before(attempt: int) -> Callable[[int], int]:
    """Work whose worker is killed in each attempt before this one."""

    def work(number: int) -> int:
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() < attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return work


def test_work_that_was_begun_anew_is_named(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    with described(spark.sparkContext, "pgsluice: apply public.t"):
        done = run_tasks(spark.sparkContext, killed_before(1), [1, 2], most_tasks=1)
    assert sorted(done) == [(1, 1), (2, 2)]
    (said,) = caplog.messages
    lost = "apply public.t (Python worker exited unexpectedly (crashed))"
    assert said.startswith(
        f"Spark lost a worker and retries its tasks: {lost}\n  → if it happens again"
    )


def test_work_that_kills_each_worker_is_named(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    with (
        described(spark.sparkContext, "pgsluice: apply public.t"),
        pytest.raises(spark_errors()),
    ):
        run_tasks(spark.sparkContext, killed_before(99), [1])
    assert caplog.messages[0].startswith("Spark lost every worker that tried to apply public.t\n")


def test_of_work_that_is_done_at_once_nothing_is_said(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_tasks(spark.sparkContext, killed_before(0), [1]) == [(1, 1)]
    assert caplog.messages == []
