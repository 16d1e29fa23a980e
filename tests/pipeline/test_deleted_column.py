"""``deleted_column``: deleted rows stay, with the time of the delete."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest
from psycopg.errors import UniqueViolation
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.subscription.verify import Verification, verify

DELETED = 'deleted_column = "gone_at"'
BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 120))"

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("deleted")]


def rows_of(one: Pipeline, table: str) -> dict[int, dict[str, Any]]:
    read = pa.RecordBatchReader.from_stream(one.delta(table).scan()).read_all().to_pylist()
    rows = {row["id"]: row for row in read}
    assert len(rows) == len(read)
    return rows


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_deleted_rows_stay_with_their_time(
    database: MakeDatabase, pipeline: MakePipeline, merge: str
) -> None:
    """Random transactions, several runs: the live rows are the source's, and every row that a run
    has seen stays."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, note text)",
        "ALTER TABLE t ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, 0, {BIG} FROM generate_series(1, 20) i",
    )
    one = pipeline(shop)
    one.sink_options = f', merge = "{merge}"'
    one.write(DELETED)
    one.once()
    rng = random.Random(merge)
    seen = {row["id"]: row["note"] for row in rows_of(one, "t").values()}
    for _ in range(2):
        for _ in range(16):
            low = rng.randint(1, 40)
            some = f"id BETWEEN {low} AND {low + 5}"
            new = f"SELECT i, 1, {BIG} FROM generate_series({low}, {low + 5}) i"
            statement = rng.choice(
                [
                    f"INSERT INTO t {new} ON CONFLICT DO NOTHING",
                    f"UPDATE t SET n = n + 1 WHERE {some}",
                    f"UPDATE t SET id = id + 50, n = n + 1 WHERE {some}",
                    f"DELETE FROM t WHERE {some}",
                ]
            )
            try:
                shop.execute(statement)
            except UniqueViolation:
                continue
        one.once()
        assert_verified(one, "public.t")
        rows = rows_of(one, "t")
        assert seen.keys() <= rows.keys()
        there = {int(number) for (number,) in shop.execute("SELECT id FROM t")}
        assert {number for number, row in rows.items() if row["gone_at"] is None} == there
        seen = {number: row["note"] for number, row in rows.items()}
    assert any(row["gone_at"] for row in rows_of(one, "t").values())


def test_truncates_and_copies_keep_deleted_rows(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 5) i",
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p SELECT i, 'x' FROM generate_series(8, 11) i",
        "CREATE TABLE bag (id int, v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    one = pipeline(shop, extra=DELETED)
    shop.execute("INSERT INTO bag VALUES (1, 'x')")
    one.once()
    shop.execute("TRUNCATE bag")
    with pytest.raises(Exception, match="bag"):
        one.once()
    assert "no key with a unique index, which deleted_column needs" in str(one.table("bag").error)
    shop.execute("DROP TABLE bag")
    shop.execute("DELETE FROM t WHERE id = 1")
    one.once()
    began = rows_of(one, "t")[1]["gone_at"]
    assert abs(dt.datetime.now(dt.UTC) - began) < dt.timedelta(hours=1)
    shop.execute("TRUNCATE t", "INSERT INTO t VALUES (2, 'y')", "TRUNCATE p1")
    one.once()
    rows = rows_of(one, "t")
    assert {number for number, row in rows.items() if row["gone_at"]} == {1, 3, 4, 5}
    assert rows[1]["gone_at"] == began
    assert rows[2]["v"] == "y"
    assert {n for n, row in rows_of(one, "p").items() if row["gone_at"]} == {8, 9}
    shop.execute("ALTER TABLE t ALTER v TYPE varchar(3)", "ALTER TABLE t ADD n int DEFAULT 7")
    shop.execute("INSERT INTO t VALUES (3, 'z', 1)", "DELETE FROM t WHERE id = 2")
    one.once()
    one.copy("t")
    one.once()
    rows = rows_of(one, "t")
    assert {number for number, row in rows.items() if row["gone_at"]} == {1, 2, 4, 5}
    assert rows[1]["gone_at"] == began
    shop.execute("ALTER TABLE p DETACH PARTITION p2")
    one.once()
    assert {n for n, row in rows_of(one, "p").items() if row["gone_at"]} == {8, 9, 10, 11}
    assert_verified(one, "public.t", "public.p")


def test_another_deleted_column_does_not_continue_a_target(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE TABLE named (id int PRIMARY KEY, gone_at text)",
    )
    one = pipeline(shop, extra=DELETED)
    with pytest.raises(Exception, match="named"):
        one.once()
    assert "has the column 'gone_at'" in str(one.table("named").error)
    one.write()
    shop.execute("DELETE FROM t")
    with pytest.raises(Exception, match="t"):
        one.once()
    assert "in another mode" in str(one.table("t").error)
    assert rows_of(one, "t") == {1: {"id": 1, "gone_at": None}}
