"""A run that was killed during its copies goes on with what is staged."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.children import Child
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.config import load_config
from pgsluice.failpoints import arm
from pgsluice.monitor.status import read_status
from pgsluice.replication import connect_sql
from pgsluice.snapshots.ranges import Portion
from pgsluice.snapshots.reader import TableQuery, table_reader
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spool import SpoolReader, find_record
from pgsluice.spool.layout import copy_files
from pgsluice.subscription.base.waits import Waits
from pgsluice.subscription.running.run import run

KEPT_AT_ONCE = Waits(keeper_after_s=0.0)


def keep_small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the copies of this process read small portions, each by a task of its own, under a kept
    snapshot."""
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.subscription.copies.staging.PORTIONS_ALONE", 1)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 100_000)
    monkeypatch.setattr("pgsluice.subscription.copies.kept.KEPT_FROM_BYTES", 0)


def killed_at(one: Pipeline, failpoint: str) -> None:
    """Run in a process that is killed at a failpoint."""
    assert Child(run_until, one.path, failpoint).wait(HANGS_S) == -signal.SIGKILL


def run_until(config: Path, failpoint: str) -> None:
    """The process that is killed; its keeper answers when a first range is being read."""
    patch = pytest.MonkeyPatch()
    keep_small_copies(patch)
    journal = load_config(config).spool.path / "subscriptions" / "lake" / copy_files(0)[1]

    def read(
        dsn: str, snapshot: Snapshot, query: TableQuery, portions: list[Portion], **options: Any
    ) -> Any:
        ((first, *_), *_) = portions
        is_first = query.facts.name == "big" and first.condition.startswith("ctid <")
        if not is_first:
            while not journal.exists():
                time.sleep(0.01)
        return table_reader(dsn, snapshot, query, portions, **options)

    patch.setattr("pgsluice.snapshots.reader.table_reader", read)
    name, _, times = failpoint.partition("@")
    arm(f"{name}=kill@{times or 1}")
    run(load_config(config), once=True, waits=KEPT_AT_ONCE)


def test_no_portion_is_read_twice(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep_small_copies(monkeypatch)
    one = pipeline(shop := database())
    one.waits = KEPT_AT_ONCE
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
    (says,) = (text for text in caplog.messages if text.startswith("public.big: its copy resumes"))
    assert one.table("big").copy_number == staged_before, says
    one.assert_equal("big", "small")
    # Two portions may have been under way at each of the two kills.
    portions = int(says.split(" of ")[-1].split()[0])
    files = len(list(one.lake.glob("**/big/*.parquet")))
    assert portions <= files <= portions + 4
    shop.await_no_temporary_slot()


@pytest.mark.soak
def test_a_kill_after_the_snapshot_is_kept(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that took it is closed, and the process that keeps it lives on."""
    keep_small_copies(monkeypatch)
    one = pipeline(shop := database())
    one.waits = KEPT_AT_ONCE
    shop.execute(
        "CREATE TABLE big (id int PRIMARY KEY, note text)",
        "INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 8000) i",
    )
    killed_at(one, "copy.kept")
    copy_number = one.table("big").copy_number
    shop.execute("DELETE FROM big WHERE id % 2 = 0")
    one.once()
    assert one.table("big").copy_number == copy_number
    one.assert_equal("big")
    shop.await_no_temporary_slot()


def is_last(dsn: str, query: TableQuery, portion: Portion) -> bool:
    """Whether a table has no pages behind a portion."""
    with connect_sql(dsn) as connection:
        ((pages,),) = connection.execute(
            "SELECT pg_relation_size(%s::oid) / 8192", [query.facts.oid]
        ).fetchall()
    return f"ctid < '({pages},0)'" in portion[-1].condition


def run_held(config: Path) -> None:
    """The process that is killed while the last portions of large tables are being read."""
    keep_small_copies(pytest.MonkeyPatch())

    def read(
        dsn: str, snapshot: Snapshot, query: TableQuery, portions: list[Portion], **options: Any
    ) -> Any:
        *_, portion = portions
        if "ctid >=" in portion[-1].condition and is_last(dsn, query, portion):
            threading.Event().wait()
        return table_reader(dsn, snapshot, query, portions, **options)

    patch = pytest.MonkeyPatch()
    patch.setattr("pgsluice.snapshots.reader.table_reader", read)
    patch.setattr("pgsluice.subscription.copies.scheduler.tasks_at_once", lambda _: 4)
    run(load_config(config), waits=KEPT_AT_ONCE)


def test_long_copies_side_by_side_each_go_on_and_small_ones_pass_them(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep_small_copies(monkeypatch)
    one = pipeline(shop := database(), extra="copy_cores = 4")
    one.waits = KEPT_AT_ONCE

    def make(*tables: str) -> None:
        for table in tables:
            rows = 4000 if table.startswith("big") else 1
            shop.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, note text)",
                f"INSERT INTO {table} SELECT i, repeat('x', 100) FROM generate_series(1, {rows}) i",
            )

    def is_active(table: str) -> bool:
        record = find_record(one.spool, "lake")
        tables = {} if record is None else record.tables
        return any(known.name == table and known.is_active for known in tables.values())

    def has_no_batch_left() -> bool:
        """Whether the subscription's position is the spool's: no later batch advances tables."""
        record = find_record(one.spool, "lake")
        return record is not None and record.position == SpoolReader(one.spool).position()

    def is_held(round_number: int) -> bool:
        """Whether all portions are staged but the last one."""
        journal = one.spool / "subscriptions" / "lake" / copy_files(round_number)[1]
        lines = journal.read_text().split("\n") if journal.exists() else []
        plans = [json.loads(line) for line in lines if '"portions"' in line]
        staged = sum('"payload"' in line for line in lines)
        return bool(plans) and staged == sum(len(plan["portions"]) for plan in plans) - 1

    make("big_1", "first")  # beside a stream, copies may have four tasks
    child = Child(run_held, one.path)
    one.wait_until(lambda: is_held(0))
    make("big_2")
    one.wait_until(lambda: is_held(1))
    make("small")
    one.wait_until(lambda: is_active("small"))
    before = SpoolReader(one.spool).position()
    shop.execute("UPDATE first SET note = 'a batch passes the copies'")
    one.wait_until(lambda: SpoolReader(one.spool).position() > before)
    one.wait_until(has_no_batch_left)
    child.kill()
    assert child.wait(HANGS_S) == -signal.SIGKILL
    with caplog.at_level(logging.INFO):
        one.once()
    goes_on = [text.split(":")[0] for text in caplog.messages if "its copy resumes" in text]
    assert goes_on == ["public.big_1", "public.big_2"]
    one.assert_equal("big_1", "big_2", "first", "small")
