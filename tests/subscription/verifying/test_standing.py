"""Both sides of a table at one position."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.arrow_rows import ArrowRows
from tests.support.databases import MakeDatabase
from tests.support.threads import beside
from tests.support.waiting import HANGS_S, await_that

from pgsluice.errors import SourceRefused
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import source_tables
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots.snapshot import import_snapshot, temporary_snapshot
from pgsluice.subscription.base.barrier import (
    BarrierAnswer,
    BarrierOwner,
    BarrierWait,
    waiting_barrier,
)
from pgsluice.subscription.base.comparing import compare_standing
from pgsluice.subscription.verifying.standing import standing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("TRUNCATE t", "rewritten"),
        ("TRUNCATE low", "rewritten"),
        ("VACUUM FULL high", "rewritten"),
        ("ALTER TABLE t RENAME TO old; CREATE TABLE t (id int)", "renamed"),
    ],
)
def test_a_table_that_changed_after_the_snapshot_is_not_compared(
    database: MakeDatabase, change: str, words: str
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t (PRIMARY KEY (id)) FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1), (11)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    rows = ArrowRows(pa.table({"id": pa.array([1, 11], pa.int32())}))
    with temporary_snapshot(shop.dsn, 60) as snapshot, shop.connect() as connection:
        import_snapshot(connection, snapshot)
        (table,) = source_tables(connection, ["pub"])
        assert compare_standing(connection, table, rows, TableOptions(), max_keys=1).equal
        shop.execute(change)
        with pytest.raises(SourceRefused, match=f"{words} at the source after the snapshot"):
            compare_standing(connection, table, rows, TableOptions(), max_keys=1)


def test_a_snapshot_that_outlasts_a_hold_gets_a_position_all_the_same(
    database: MakeDatabase, tmp_path: Path
) -> None:
    """The run passes the first position; then a transaction stays open for longer than batches
    wait."""
    shop = database()
    shop.execute("CREATE TABLE t (id int)")
    positions: list[Lsn] = []
    may_end = threading.Event()
    with shop.connect() as writer, BarrierOwner(tmp_path, (), hold_s=0.2) as owner:

        def answer_at(position: Lsn) -> BarrierAnswer:
            positions.append(position)
            is_first = len(positions) == 1
            if is_first:
                writer.execute("BEGIN; INSERT INTO t VALUES (1)")
            return BarrierAnswer("", position, is_first, {})

        def verify(_: threading.Event) -> None:
            stands = standing(shop.dsn, owner, answer_at, sessions=1, is_stopping=may_end.is_set)
            with stands as stand:
                assert stand.position == positions[1]
                may_end.wait(HANGS_S)

        def is_holding() -> bool:
            barrier = waiting_barrier(tmp_path)
            return barrier is not None and barrier.position is None

        failures: list[BaseException] = []
        wait, far = BarrierWait(tmp_path, hold_s=0.2), Lsn(2**60)
        with beside(verify, failures):
            try:
                await_that(lambda: is_holding() or bool(failures), "batches wait")
                assert wait.limit(Lsn(1), far, wait_s=HANGS_S) == far, "not any more"
                writer.execute("COMMIT")
                await_that(lambda: len(positions) == 2 or bool(failures), "a second position")
                assert not failures
                assert wait.limit(Lsn(1), far, wait_s=0) == positions[1]
                assert wait.limit(positions[1], far, wait_s=0) == positions[1], "it has its time"
            finally:
                may_end.set()
