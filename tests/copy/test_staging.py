"""What a task stages: portions of a table in one session, each with its own result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa
import pytest
from tests.support.databases import Database, MakeDatabase

from pgsluice.copy.job import CopyTables, CopyWork
from pgsluice.errors import Failure, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import source_tables
from pgsluice.replication import connect_sql
from pgsluice.sinks.contract import StagedRows
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.snapshots.snapshot import temporary_snapshot

RANGES = ("id < 10", "id BETWEEN 10 AND 19", "id BETWEEN 20 AND 29", "id > 29")
PORTIONS: list[Portion] = [(Read(condition=condition),) for condition in RANGES]

_END_SESSIONS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'pgsluice copy public.first'
"""

Stage = Callable[..., list[StagedRows | Failure | None]]


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    """Two tables with the same 40 rows."""
    shop = database()
    for table in ("first", "second"):
        shop.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, day date)",
            f"INSERT INTO {table} SELECT i, DATE '2026-01-01' + i FROM generate_series(0, 39) i",
        )
    shop.execute("CREATE PUBLICATION p FOR TABLE first, second")
    return shop


@pytest.fixture
def stage(shop: Database, tmp_path: Path) -> Stage:
    """Stages the portions of tables as one task, which has time for all of them."""

    def run(
        *tables: str, locked: str | None = None, table_s: float = math.inf
    ) -> list[StagedRows | Failure | None]:
        with ExitStack() as held:
            connection = held.enter_context(connect_sql(shop.dsn))
            facts = {each.facts.name: each.facts for each in source_tables(connection, ["p"])}
            snapshot = held.enter_context(temporary_snapshot(shop.dsn, 60))
            if locked is not None:
                other = held.enter_context(shop.connect())
                other.execute("BEGIN")
                other.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE".encode())
            sink = {"type": "delta", "path": str(tmp_path / "{table}")}
            task = CopyTables(shop.dsn, snapshot, "a-spool", sink, TableOptions(), table_s=table_s)
            works = [
                CopyWork(facts[table], "public", table, None, None, copy_number=1)
                for table in tables
            ]
            return task.stage_all([(work, portion) for work in works for portion in PORTIONS])

    return run


def rows(results: list[StagedRows | Failure | None]) -> list[int | Remedy | None]:
    return [
        result.remedy if isinstance(result, Failure) else result and result.rows
        for result in results
    ]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For which tables sessions were opened."""
    opened = []

    def connect(dsn: str, **options: Any) -> Any:
        opened.append(options["application"])
        return connect_sql(dsn, **options)

    monkeypatch.setattr("pgsluice.snapshots.read_session.connect_sql", connect)
    return opened


def test_the_tables_of_a_task_share_a_session(stage: Stage, sessions: list[str]) -> None:
    assert rows(stage("first", "second")) == [10] * 8
    assert sessions == ["copy public.first"]


def test_after_a_failure_the_next_table_has_another_session(
    shop: Database, stage: Stage, sessions: list[str]
) -> None:
    shop.execute("UPDATE first SET day = DATE '5874897-12-31' WHERE id = 15")
    assert rows(stage("first", "second"))[4:] == [10] * 4
    assert sessions == ["copy public.first", "copy public.second"]


def test_after_a_failure_no_other_portion_of_the_table_is_read(
    shop: Database, stage: Stage
) -> None:
    shop.execute("UPDATE first SET day = DATE '5874897-12-31' WHERE id = 15")
    assert rows(stage("first", "second")) == [10, Remedy.PARK, None, None, 10, 10, 10, 10]


def test_after_a_while_no_other_portion_of_a_table_is_begun(stage: Stage) -> None:
    assert rows(stage("first", "second", table_s=0.0)) == [10, None, None, None] * 2


def test_a_session_that_ends_after_the_last_portion_has_read_all_of_them(
    shop: Database, stage: Stage, sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the server between the last row and the end of the session's transaction."""
    stage_load, staged = TableWriter.stage_load, list[StagedRows]()

    def stage_and_end(self: TableWriter, rows: Iterable[pa.RecordBatch], position: Lsn) -> Any:
        staged.append(stage_load(self, rows, position))
        if len(staged) == len(PORTIONS):  # those of the first table
            shop.execute(_END_SESSIONS)
        return staged[-1]

    monkeypatch.setattr(TableWriter, "stage_load", stage_and_end)
    assert rows(stage("first", "second")) == [10] * 8
    assert sessions == ["copy public.first", "copy public.second"]


def test_a_table_that_is_locked_is_not_read_at_all(stage: Stage) -> None:
    results = stage("second", "first", locked="first")
    assert rows(results) == [10] * 4 + [Remedy.LATER, None, None, None]


def test_partitions_are_not_loaded_into_a_target_that_is_past_their_snapshot(
    shop: Database, tmp_path: Path
) -> None:
    """An earlier attempt committed on a primary that a promotion left, and its record was lost."""
    with connect_sql(shop.dsn) as connection, temporary_snapshot(shop.dsn, 60) as snapshot:
        (facts,) = (t.facts for t in source_tables(connection, ["p"]) if t.facts.name == "first")
        sink = {"type": "delta", "path": str(tmp_path / "{table}")}
        task = CopyTables(shop.dsn, snapshot, "a-spool", sink, TableOptions())
        copy = CopyWork(facts, "public", "first", None, None, copy_number=1)
        task.commit(copy, [r for r in task.stage_all([(copy, (Read(),))]) if _is_staged(r)])
        load = replace(copy, leaves=(facts.oid,))

        def commit(position: Lsn) -> None:
            at = replace(task, snapshot=replace(snapshot, position=position))
            at.commit(load, [r for r in at.stage_all([(load, (Read(),))]) if _is_staged(r)])

        commit(Lsn(snapshot.position + 1000))
        commit(Lsn(snapshot.position + 1000))  # the same attempt again
        with pytest.raises(TableError, match="past the snapshot") as refused:
            commit(snapshot.position)
        assert refused.value.remedy is Remedy.COPY


def _is_staged(result: StagedRows | Failure | None) -> TypeGuard[StagedRows]:
    return isinstance(result, StagedRows)
