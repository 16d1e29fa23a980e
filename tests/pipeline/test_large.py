"""A transaction that is larger than memory should be: it comes in parts, and tasks share it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.databases import MakeDatabase
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.pipeline import MakePipeline

from pgsluice import failpoints
from pgsluice.errors import Failure
from pgsluice.spark.tasks import run_tasks

ROWS = 50_000


def arm_workers(spark: SparkSession, specification: str, folder: Path) -> None:
    """Arm a failpoint in two of Spark's Python workers, which run tasks at the same time."""

    def arm(number: int) -> None:
        (folder / str(number)).touch()
        deadline = time.monotonic() + 60
        while not (folder / str(1 - number)).exists():
            assert time.monotonic() < deadline, "the tasks did not run at the same time"
            time.sleep(0.01)
        failpoints.arm(specification)

    results = run_tasks(spark.sparkContext, arm, [0, 1])
    assert not [result for _, result in results if isinstance(result, Failure)]


def test_a_large_transaction_comes_in_parts_and_tasks_share_it(
    spark: SparkSession,
    database: MakeDatabase,
    pipeline: MakePipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker is killed after it has staged its share, before the commit."""
    monkeypatch.setattr("pgsluice.subscription.large_batch.LARGE_BYTES", 2**20)
    monkeypatch.setattr("pgsluice.subscription.large_batch.PIECE_BYTES", 2**19)
    killed = tmp_path / "killed"
    arm_workers(spark, f"batch.staged=kill:{killed}", tmp_path)
    one = pipeline(database())
    assert replicate(one, ROWS, segment_bytes=2**18) < CAPTURE_BYTES
    assert killed.exists()
    assert one.delta("t").version() <= 3, "it is one commit"
