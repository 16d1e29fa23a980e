"""Copies of very wide rows in bounded memory: the task's part, in a process of its own."""

from __future__ import annotations

import resource
from pathlib import Path

import pyarrow.parquet
from tests.support.children import Child
from tests.support.databases import MakeDatabase

from pgsluice.copy import CopyTables, CopyWork
from pgsluice.replication import connect_sql
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots import WHOLE, temporary_snapshot
from pgsluice.subscription.discovery import source_tables

MIB = 2**20
WIDEST = 64 * MIB


def stage(dsn: str, lake: Path, table: str) -> None:
    """Stage a whole table, and write down how much memory that took at its peak."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with connect_sql(dsn) as connection:
        (facts,) = (
            each.facts for each in source_tables(connection, ["p"]) if each.facts.name == table
        )
    sink = {"type": "delta", "path": str(lake / "{table}")}
    with temporary_snapshot(dsn, 60) as snapshot:
        task = CopyTables(dsn, snapshot, "a-spool", sink, TableOptions())
        work = CopyWork(facts, "public", table, None, None, copy_number=1)
        staged = task.stage(work, WHOLE[0])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (lake / f"{table}.peak").write_text(f"{staged.rows} {before * 1024} {after * 1024}")


def test_one_row_of_each_block_is_in_memory(database: MakeDatabase, tmp_path: Path) -> None:
    shop = database()
    columns = ", ".join(f"c{number} int" for number in range(1599))
    shop.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        f"INSERT INTO large SELECT i, repeat('x', {WIDEST}) FROM generate_series(1, 3) i",
        f"CREATE TABLE wide (id int PRIMARY KEY, {columns})",
        "INSERT INTO wide (id, c0, c1598) SELECT i, i, -i FROM generate_series(1, 500) i",
        "CREATE PUBLICATION p FOR TABLE large, wide",
    )
    peaks = {}
    for table, rows in (("large", 3), ("wide", 500)):
        child = Child(stage, shop.dsn, tmp_path, table)
        assert child.wait(120) == 0
        staged, before, after = map(int, (tmp_path / f"{table}.peak").read_text().split())
        assert staged == rows
        peaks[table] = (before, after)
    assert all(after <= 1024 * MIB + 4 * WIDEST for _, after in peaks.values()), peaks
    assert peaks["large"][1] <= peaks["large"][0] + 8 * WIDEST, "one row at a time"
    files = list(tmp_path.glob("large/**/*.parquet"))
    assert sum(pyarrow.parquet.read_metadata(file).num_rows for file in files) == 3
