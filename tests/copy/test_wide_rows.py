"""Copies of very wide rows in bounded memory: the task's part, in a process of its own; and the
server's part."""

from __future__ import annotations

import resource
from pathlib import Path

import pyarrow.parquet
import pytest
from tests.support.children import Child
from tests.support.databases import MakeDatabase
from tests.support.waiting import HANGS_S

from pgsluice.copy.job import CopyTables, CopyWork
from pgsluice.published.discovery import source_tables
from pgsluice.replication import connect_sql
from pgsluice.sinks.target import TableOptions, column_type
from pgsluice.snapshots.ranges import WHOLE
from pgsluice.snapshots.reader import TableQuery, table_reader
from pgsluice.snapshots.snapshot import temporary_snapshot
from pgsluice.system.freed_memory import keep_freed_memory

MIB = 2**20
WIDEST = 64 * MIB


def stage(dsn: str, lake: Path) -> None:
    """Stage tables one after the other, and write down the peak of this process's memory after
    each."""
    with connect_sql(dsn) as connection:
        facts = {each.facts.name: each.facts for each in source_tables(connection, ["p"])}
    sink = {"type": "delta", "path": str(lake / "{table}")}
    peaks = []
    with temporary_snapshot(dsn, 60) as snapshot:
        task = CopyTables(dsn, snapshot, "a-spool", sink, TableOptions())
        for table in ("small", "large", "wide"):
            work = CopyWork(facts[table], "public", table, None, None, copy_number=1)
            (staged,) = task.stage_all([(work, WHOLE[0])])
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            peaks.append(f"{staged.rows} {peak}")
    (lake / "peaks").write_text(" ".join(peaks))


def test_one_row_is_in_memory_four_times_at_most(database: MakeDatabase, tmp_path: Path) -> None:
    """The text can be compressed: it is there as it was received, and as Parquet's values and page.

    A fourth one, of what cannot be compressed: see ``sinks/test_staging.py``.
    """
    shop = database()
    columns = ", ".join(f"c{number} int" for number in range(1599))
    shop.execute(
        "CREATE TABLE small (id int PRIMARY KEY, v text)",
        "INSERT INTO small VALUES (1, 'x')",
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        f"INSERT INTO large SELECT i, repeat('x', {WIDEST}) FROM generate_series(1, 3) i",
        f"CREATE TABLE wide (id int PRIMARY KEY, {columns})",
        "INSERT INTO wide (id, c0, c1598) SELECT i, i, -i FROM generate_series(1, 500) i",
        "CREATE PUBLICATION p FOR TABLE small, large, wide",
    )
    child = Child(stage, shop.dsn, tmp_path)
    assert child.wait(HANGS_S) == 0
    written = list(map(int, (tmp_path / "peaks").read_text().split()))
    rows, (small, large, wide) = written[::2], written[1::2]
    assert rows == [1, 3, 500]
    assert large <= small + 3.5 * WIDEST
    assert wide <= 1024 * MIB
    files = list(tmp_path.glob("large/**/*.parquet"))
    assert [pyarrow.parquet.read_metadata(file).num_rows for file in files] == [1, 1, 1]


def stage_array(dsn: str, lake: Path) -> None:
    """Stage a table of one row, and write down the peak of this process's memory."""
    keep_freed_memory()  # as workers do
    with connect_sql(dsn) as connection:
        (table,) = source_tables(connection, ["p"])
    sink = {"type": "delta", "path": str(lake / "{table}")}
    with temporary_snapshot(dsn, 60) as snapshot:
        task = CopyTables(dsn, snapshot, "a-spool", sink, TableOptions())
        work = CopyWork(table.facts, "public", "t", None, None, copy_number=1)
        (staged,) = task.stage_all([(work, WHOLE[0])])
        assert staged.rows == 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (lake / "peak").write_text(str(peak))


@pytest.mark.parametrize(
    ("element", "value", "sent_bytes"),
    [
        ("int4", "7", 8),
        # make soak AREA=long
        pytest.param("text", "'x'", 5, marks=pytest.mark.soak),
        pytest.param("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", 37, marks=pytest.mark.soak),
    ],
)
def test_an_array_of_many_short_elements_takes_four_times_what_is_sent_of_it(
    database: MakeDatabase, tmp_path: Path, element: str, value: str, sent_bytes: int
) -> None:
    """Of a text (uuid), each byte was known to be a quote, a brace or another one, at once."""
    count = 96 * MIB // sent_bytes
    shop = database()
    shop.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v {element}[])",
        f"INSERT INTO t SELECT 1, array_fill({value}::{element}, ARRAY[{count}])",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    child = Child(stage_array, shop.dsn, tmp_path)
    assert child.wait(HANGS_S) == 0
    peak = int((tmp_path / "peak").read_text())
    assert peak <= 512 * MIB + 4 * 96 * MIB
    (file,) = tmp_path.glob("t/**/*.parquet")
    assert pyarrow.parquet.read_metadata(file).row_group(0).column(1).num_values == count


READERS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%copy public.wide'"


def page_faults(pid: int) -> int:
    """How often a process was given a page of memory."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_the_server_keeps_the_memory_of_wide_rows(
    database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it gives it back after each row, rows of 200 columns take three times its CPU."""
    monkeypatch.setattr("pgsluice.snapshots.copied_rows.BLOCK_BYTES", 64 * 1024)
    shop = database()
    columns = ", ".join(f"c{number} int DEFAULT {number}" for number in range(400))
    shop.execute(
        f"CREATE TABLE wide (id int PRIMARY KEY, {columns})",
        "INSERT INTO wide (id) SELECT i FROM generate_series(1, 1000) i",
        "CREATE PUBLICATION p FOR TABLE wide",
    )
    with connect_sql(shop.dsn) as connection:
        (table,) = source_tables(connection, ["p"])
        facts, names = table.facts, tuple(column.name for column in table.facts.columns)
        types = tuple(column_type(column, facts, TableOptions()) for column in facts.columns)
        query, rows, faults = TableQuery(facts, names, types), 0, 0
        with (
            temporary_snapshot(shop.dsn, 60) as snapshot,
            table_reader(shop.dsn, snapshot, query, WHOLE) as reader,
        ):
            for block in reader.rows(WHOLE[0]):
                ((pid,),) = connection.execute(READERS).fetchall()
                rows, faults = rows + len(block), page_faults(pid)
    assert rows == 1000
    assert faults < 20 * rows, "52 for each row beside those of the session"
