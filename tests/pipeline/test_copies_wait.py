"""Tables whose copies cannot begin or go on: they wait, and others are copied."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.config import load_config
from pgsluice.monitor.status import read_status
from pgsluice.spool import TableState, find_record
from pgsluice.subscription.base.requests import request_copy
from pgsluice.subscription.base.waits import Waits
from pgsluice.subscription.copies import copy_run, snapshots
from pgsluice.subscription.copies.snapshots import new_snapshot


def test_a_table_that_is_locked_waits_and_the_others_are_copied(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then one is renamed before the snapshot of its copy, and no look has found the new name yet:
    what is written under that name does not belong to the target of the old one."""
    use_local_spark(monkeypatch)
    one = pipeline(shop := database())
    one.waits = Waits(lock_poll_s=0.1)
    shop.execute(
        "CREATE TABLE locked (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF locked DEFAULT",
        "CREATE TABLE free (id int PRIMARY KEY)",
        "INSERT INTO locked VALUES (1)",
        "INSERT INTO free VALUES (1)",
    )
    read_source = copy_run.read_source
    with shop.connect() as migration:

        def locking(*arguments: Any) -> Any:
            """A slot waits for a transaction that locks, so the lock comes after the snapshot."""
            if migration.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
                migration.execute("BEGIN; LOCK TABLE ONLY leaf")
            return read_source(*arguments)

        monkeypatch.setattr(copy_run, "read_source", locking)
        with one.live():
            one.wait_until(lambda: find_record(one.spool, "lake") is not None)
            one.wait_until(lambda: len(one.record().tables) == 2)
            one.wait_until(lambda: one.table("free").is_active)
            one.wait_until(lambda: one.table("locked").error is not None)
            waits = one.table("locked")
            assert waits.state is TableState.INITIALISE
            what, hint = str(waits.error).split("\n")
            pid = migration.info.backend_pid
            began = r"whose transaction began at \d\d:\d\d:\d\d UTC"
            assert re.fullmatch(rf"public\.leaf is locked by pid {pid}, {began}", what)
            assert hint == "  → pgsluice copies it automatically once the lock is released"
            shop.execute("INSERT INTO free VALUES (2)")
            one.wait_until(lambda: one.delta("free").to_pyarrow_table().num_rows == 2)
            monkeypatch.setattr(copy_run, "read_source", read_source)
            migration.execute("ROLLBACK")
            one.wait_until(lambda: one.table("locked").is_active)
            assert one.table("locked").error is None
            _copy_renamed(one, monkeypatch)
    one.assert_equal("locked", "renamed")
    assert sorted(one.delta("free").to_pyarrow_table().column("id").to_pylist()) == [1, 2]


def _copy_renamed(one: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a table copied that is renamed when its snapshot is about to be taken."""
    (free,) = (oid for oid, table in one.record().tables.items() if table.name == "free")

    def renaming(*arguments: Any) -> Any:
        monkeypatch.setattr(snapshots, "new_snapshot", new_snapshot)
        rename = "ALTER TABLE free RENAME TO renamed"
        one.database.execute(rename, "INSERT INTO renamed VALUES (3)")
        return new_snapshot(*arguments)

    monkeypatch.setattr(snapshots, "new_snapshot", renaming)
    request_copy(one.spool / "subscriptions" / "lake", free)
    one.wait_until(lambda: one.record().tables[free].name == "renamed")
    one.wait_until(lambda: one.record().tables[free].is_active)


def test_a_copy_that_waits_for_its_rate_says_so_and_warns_of_its_snapshot(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second range would begin after a minute: the run is stopped before."""
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 100_000)
    one = pipeline(shop := database(), extra='copy_rate = "1 KiB"')
    one.waits = Waits(warn_every_s=0.0)
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i",
    )

    def waits_for() -> str:
        subscriptions = read_status(load_config(one.path)).subscriptions
        copies = [subscription.copies.tables for subscription in subscriptions]
        return "".join(copy.waits_for for tables in copies for copy in tables.values())

    with one.live():
        one.wait_until(lambda: waits_for() == "the rate that copy_rate allows")
    assert any("VACUUM does not remove rows" in message for message in caplog.messages)
