"""A query reads from a real server: the source starts and ends its own capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.capturing import await_end
from tests.support.databases import Database

from pgsluice.lsn import Lsn

EMOJI, WIDE = "\U0001f600", "\uff01"
"""Names whose order as UTF-16 is not that as UTF-8."""
MANY = ", ".join(f"c{number} int" for number in range(30))
"""Spark searches by halves among 32 names or more."""


def test_a_query_starts_and_ends_its_own_capture(
    spark: Any, database: Callable[[], Database], tmp_path: Path
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), tags text[],"
        " placed timestamptz, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f'CREATE TABLE other (id bigint PRIMARY KEY, "{EMOJI}" int, "{WIDE}" int, {MANY})',
    )
    spool = tmp_path / "spool"
    source = spark.readStream.format("pgoutput").options(
        dsn=shop.dsn, slot=shop.name, spool=str(spool), subscription="live", publications=shop.name
    )
    orders = source.option("table", "public.orders").load()
    assert orders.schema.simpleString().startswith(
        "struct<id:int,amount:decimal(10,2),tags:array<string>,placed:timestamp,note:string,"
    )
    seen: list[tuple[Any, ...]] = []

    def keep(frame: Any, _number: int) -> None:
        rows = frame.orderBy("_commit_version", "_ordinal", "_change_type").collect()
        seen.extend(
            (row["_change_type"], row.id, str(row.amount), row.tags, row["_absent"]) for row in rows
        )

    def run() -> None:
        query = (
            orders.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()  # registers the subscription at the slot's start
    shop.execute(
        "INSERT INTO orders VALUES"
        " (1, 1.50, '{a,NULL}', '2026-01-02 03:04:05+06', repeat('x', 9000))",
        "INSERT INTO other VALUES (5, 6, 7)",
        "UPDATE orders SET amount = 2 WHERE id = 1",
        "UPDATE orders SET id = 2 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
    )
    run()
    assert seen == [
        ("insert", 1, "1.50", ["a", None], []),
        ("update_postimage", 1, "2.00", ["a", None], ["note"]),
        ("update_postimage", 2, "2.00", ["a", None], ["note"]),
        ("update_preimage", 1, "None", None, ["amount", "tags", "placed", "note"]),
        ("delete", 2, "None", None, ["amount", "tags", "placed", "note"]),
    ]
    await_end(spool)
    _envelope(spark, spool)


def _envelope(spark: Any, spool: Path) -> None:
    """Read the whole spool with a batch query, as envelope rows."""
    frame = _range(spark, spool)
    rows = (
        frame.where("_change_type = 'insert'")
        .selectExpr(
            "`table`",
            "to_json(key) AS key",
            "variant_get(row, '$.amount', 'decimal(10,2)') AS amount",
            "CAST(variant_get(row, '$.placed', 'timestamp') AS string) AS placed",
            "schema_of_variant(row) AS shape",
            f"variant_get(row, '$[\"{EMOJI}\"]', 'int') AS emoji",
            f"variant_get(row, '$[\"{WIDE}\"]', 'int') AS wide",
            "_commit_version AS version",
        )
        .orderBy("version")
        .collect()
    )
    first, second = rows
    assert (first.table, first.key, str(first.amount)) == ("orders", '{"id":1}', "1.50")
    assert first.placed == "2026-01-01 21:04:05"
    assert first.shape == (
        "OBJECT<amount: DECIMAL(2,1), id: BIGINT, note: STRING, placed: TIMESTAMP, "
        "tags: ARRAY<STRING>>"
    )
    assert (second.table, second.key) == ("other", '{"id":5}')
    assert second.shape.startswith("OBJECT<c0: VOID, ")
    assert (second.emoji, second.wide) == (6, 7)
    lsn = str(Lsn(second.version))
    versions = [row["_commit_version"] for row in frame.select("_commit_version").collect()]
    through = sum(version <= second.version for version in versions)
    assert 0 < through < len(versions)
    assert _range(spark, spool, ending_lsn=lsn).count() == through
    assert _range(spark, spool, starting_lsn=lsn).count() == len(versions) - through


def _range(spark: Any, spool: Path, **options: str) -> Any:
    return spark.read.format("pgoutput").options(spool=str(spool), **options).load()
