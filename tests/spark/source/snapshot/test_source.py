"""A table's snapshot in a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import Database, MakeDatabase

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
KEEPERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'pgsluice snapshot of a copy'
"""


def snapshot_of(spark: Any, shop: Database, table: str, **options: str) -> Any:
    given = {"dsn": shop.dsn, "table": table, "snapshot": "true", **options}
    return spark.read.format("pgoutput").options(**given).load()


@pytest.mark.pg(">= 18")
def test_a_table_is_read_at_one_position(spark: Any, database: MakeDatabase) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE small (id int, price numeric(8,2), at timestamptz, tags text[],"
        " quotient int GENERATED ALWAYS AS (100 / (id - 3)) VIRTUAL)",
        "INSERT INTO small VALUES (1, 1.50, '2026-01-02 03:04:05+06', '{a,NULL}'),"
        " (2, NULL, NULL, NULL), (3, 9.99, '2026-01-03 00:00+00', '{}')",
        "CREATE UNLOGGED TABLE large (id int, filler text)",
        "INSERT INTO large SELECT i, repeat('x', 1000) FROM generate_series(1, 80000) i",
    )
    small = snapshot_of(spark, shop, "public.small")
    assert small.schema.simpleString().startswith(
        "struct<id:int,price:decimal(8,2),at:timestamp,tags:array<string>,_change_type:string,"
    )
    row = small.orderBy("id").first()
    assert (row.id, str(row.price), row.tags) == (1, "1.50", ["a", None])
    assert row["_commit_version"] > 0
    shop.execute("INSERT INTO small VALUES (4, 4, NULL, NULL)")
    assert small.count() == 4, "each action has a snapshot of its own"
    _filtered(spark, shop)
    large = snapshot_of(spark, shop, "public.large", columns="id", copy_workers="3")
    counted = large.selectExpr(
        "count(id)", "sum(id)", "count(DISTINCT _commit_version)", "count(DISTINCT _ordinal)"
    )
    assert tuple(counted.first()) == (80000, 80000 * 80001 // 2, 1, 80000)
    shop.await_no_temporary_slot()
    # Their driver lives on: they end by themselves, when nobody has read for a while.
    assert 0 < shop.execute(KEEPERS)[0][0] <= 2
    shop.execute(KEEPERS.replace("count(*)", "pg_terminate_backend(pid)"))


def _filtered(spark: Any, shop: Database) -> None:
    """A row whose virtual column cannot be computed fails, unless the server leaves it out."""
    frame = snapshot_of(spark, shop, "public.small", columns="id, quotient, price, at")
    with pytest.raises(Exception, match="division_by_zero"):
        frame.where("id <> 3").collect()
    spark.conf.set(PUSHDOWN, "true")
    try:
        for condition, ids in (
            ("id <> 3", [1, 2, 4]),
            ("at < TIMESTAMP '2026-01-02 00:00:00Z'", [1]),
        ):
            again = snapshot_of(spark, shop, "public.small", columns="id, quotient, price, at")
            rows = again.where(condition).select("id").collect()
            assert sorted(row.id for row in rows) == ids, condition
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_query_that_fails_among_the_first_rows_delivers_each_once(
    spark: Any, database: MakeDatabase, tmp_path: Path
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT generate_series(1, 500)",
    )
    stream = (
        spark.readStream.format("pgoutput")
        .options(dsn=shop.dsn, slot=shop.name, spool=str(tmp_path / "spool"), subscription="q")
        .options(table="public.orders", starting_position="snapshot")
        .load()
    )
    seen: list[int] = []

    def broken(frame: Any, _number: int) -> None:
        if frame.count():
            raise RuntimeError("the sink is down")

    def keep(frame: Any, _number: int) -> None:
        seen.extend(row.id for row in frame.collect())

    def run(each: Any) -> None:
        (
            stream.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    with pytest.raises(Exception, match="the sink is down"):
        run(broken)
    shop.execute("INSERT INTO orders VALUES (501)")
    run(keep)
    assert sorted(seen) == list(range(1, 502))
