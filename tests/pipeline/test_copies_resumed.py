"""A run that was killed during its copies goes on with what is staged."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pytest
from tests.support.children import Child
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.config import load_config
from pgsluice.failpoints import arm
from pgsluice.monitor.status import read_status
from pgsluice.subscription.run import run


def keep_small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the copies of this process read small portions, under a kept snapshot."""
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 100_000)
    monkeypatch.setattr("pgsluice.subscription.copy_round.KEPT_FROM_BYTES", 0)


def killed_at(one: Pipeline, failpoint: str) -> None:
    """Run in a process that is killed at a failpoint."""
    assert Child(run_until, one.path, failpoint).wait(120) == -signal.SIGKILL


def run_until(config: Path, failpoint: str) -> None:
    """The process that is killed."""
    keep_small_copies(pytest.MonkeyPatch())
    name, _, times = failpoint.partition("@")
    arm(f"{name}=kill@{times or 1}")
    run(load_config(config), once=True)


def test_no_portion_is_read_twice(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep_small_copies(monkeypatch)
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE big (id int PRIMARY KEY, note text)",
        "INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 8000) i",
        "CREATE TABLE small (id int PRIMARY KEY)",
        "INSERT INTO small VALUES (1)",
    )
    killed_at(one, "copy.committed")  # of the small table
    staged_before = one.table("big").copy_number
    killed_at(one, "copy.staged@3")
    (lake,) = read_status(load_config(one.path)).subscriptions
    copy = lake.copies.tables["public", "big"]
    assert copy.amount is not None
    assert copy.amount.ranges >= 3, "what is staged before is counted, too"
    assert copy.amount.bytes < copy.amount.all_bytes
    assert (lake.copies.done, lake.copies.all_tables) == (1, 2)
    shop.execute("DELETE FROM big WHERE id % 2 = 0", "INSERT INTO small VALUES (2)")
    with caplog.at_level(logging.INFO):
        one.once()
    (says,) = (text for text in caplog.messages if text.startswith("public.big: its copy goes on"))
    assert one.table("big").copy_number == staged_before, says
    one.assert_equal("big", "small")
    # Two portions may have been under way at each of the two kills.
    portions = int(says.split(" of ")[-1].split()[0])
    files = len(list(one.lake.glob("**/big/*.parquet")))
    assert portions <= files <= portions + 4
    assert shop.execute("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(0,)]
