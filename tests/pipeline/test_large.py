"""A transaction that is larger than memory should be: it comes in parts, and tasks share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import MakeDatabase
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.pipeline import MakePipeline

from pgsluice import failpoints
from pgsluice.spark.jobs.tasks import run_tasks

ROWS = 50_000


def arm_tasks(specification: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tasks of large batches arm a failpoint, each in its worker."""

    def armed(context: Any, run: Callable[[Any], Any], works: Sequence[Any], **options: Any) -> Any:
        def work_on(work: Any) -> Any:
            failpoints.arm(specification)
            return run(work)

        return run_tasks(context, work_on, works, **options)

    monkeypatch.setattr("pgsluice.subscription.batches.tasks.shared_batch.run_tasks", armed)


@pytest.mark.usefixtures("spark")
def test_a_large_transaction_comes_in_parts_and_tasks_share_it(
    database: MakeDatabase,
    pipeline: MakePipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker is killed after it has staged its share, before the commit."""
    monkeypatch.setattr("pgsluice.subscription.batches.tasks.large_batch.LARGE_BYTES", 2**20)
    monkeypatch.setattr("pgsluice.subscription.batches.tasks.large_batch.PIECE_BYTES", 2**19)
    killed = tmp_path / "killed"
    arm_tasks(f"batch.staged=kill:{killed}", monkeypatch)
    one = pipeline(database())
    assert replicate(one, ROWS, segment_bytes=2**18) < CAPTURE_BYTES
    assert killed.exists()
    assert one.delta("t").version() <= 3, "it is one commit"
