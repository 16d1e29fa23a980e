"""``rename``: schemas, tables and columns with other names at the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.cli.app import run_command
from pgsluice.errors import TablesUnfinished
from pgsluice.spark.checkpoints import find_checkpoint
from pgsluice.subscription.verify import Verification, verify

RENAME = """
key = { "public.sold" = ["id"] }
[subscription.rename]
"public" = "shop"
"public.orders" = "sold"
"public.sold" = "orders"
"public.orders.total" = "note"
"public.orders.note" = "total"
"public.orders.id" = "order number"
"""

pytestmark = pytest.mark.usefixtures("local_spark")


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    db = database()
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total int, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        "CREATE TABLE sold (id int PRIMARY KEY, at int DEFAULT 4)",
        "INSERT INTO orders SELECT n, n, repeat('n', 3000) FROM generate_series(1, 20) n",
        "INSERT INTO sold SELECT n FROM generate_series(1, 5) n",
    )
    return db


def rows(one: Pipeline, table: str, schema: str = "shop") -> list[dict[str, Any]]:
    target = DeltaTable(f"{one.lake}/{schema}/{table}")
    read = pa.RecordBatchReader.from_stream(target.scan()).read_all().to_pylist()
    return sorted(read, key=lambda row: str(row))


def differing(one: Pipeline) -> set[str]:
    """The tables that verify does not find equal."""
    verified = verify(one.config, one.config.subscription("lake"), Verification())
    assert len(verified) == 2
    return {table.title for table in verified if table.is_failure}


def test_names_at_the_target_are_others_through_changes_of_rows_and_columns(
    shop: Database, pipeline: MakePipeline
) -> None:
    one = pipeline(shop, extra=RENAME)
    one.once()
    shop.execute(
        "UPDATE orders SET total = 70 WHERE id = 7",  # the note is not sent
        "UPDATE orders SET id = 100 WHERE id = 8",
        "DELETE FROM orders WHERE id > 9 AND id < 100",
        "ALTER TABLE orders ADD more int DEFAULT 3",
        "UPDATE orders SET more = 5 WHERE id = 1",
        "DELETE FROM sold WHERE id > 1",
    )
    one.once()
    assert sorted(path.name for path in one.lake.iterdir()) == ["shop"]
    found = {row["order number"]: row for row in rows(one, "sold")}
    assert {*found} == {1, 2, 3, 4, 5, 6, 7, 9, 100}
    long = "n" * 3000
    assert found[7] == {"order number": 7, "note": 70, "total": long, "more": 3}
    assert found[100]["total"] == long
    assert found[1]["more"] == 5
    assert rows(one, "orders") == [{"id": 1, "at": 4}]
    assert differing(one) == set()
    cut = find_checkpoint(one.config, one.config.subscription("lake"))
    places = {table.name: Path(str(table.location)).name for table in cut.tables}
    assert places == {"orders": "sold", "sold": "orders"}
    shop.execute("ALTER TABLE orders RENAME total TO sum", "UPDATE orders SET sum = 1 WHERE id = 1")
    one.once()
    assert {row["order number"]: row["sum"] for row in rows(one, "sold")}[1] == 1
    assert differing(one) == set()


def test_a_name_that_rename_gives_away_is_no_other_column_or_table(
    shop: Database, pipeline: MakePipeline
) -> None:
    """Until it is free again."""
    one = pipeline(shop, extra='rename = { "public.orders" = "other", "public.sold.at" = "TIME" }')
    one.once()
    shop.execute("ALTER TABLE sold ADD time int DEFAULT 8", "INSERT INTO sold VALUES (7, 7, 7)")
    with pytest.raises(TablesUnfinished):
        one.once()
    assert "gives this name to public.sold.at" in str(one.table("sold").error)
    assert [*rows(one, "sold", "public")[0]] == ["id", "TIME"]
    shop.execute("ALTER TABLE sold DROP time")
    one.once()
    assert len(rows(one, "sold", "public")) == 6
    shop.execute("ALTER TABLE sold RENAME TO other")
    with pytest.raises(TablesUnfinished):
        one.once()
    assert "gives this name to public.orders" in str(one.table("other").error)
    assert len(rows(one, "other", "public")) == 20
    shop.execute("ALTER TABLE other RENAME TO sold")
    one.once()
    assert differing(one) == set()


def test_a_changed_name_of_a_column_parks_its_table_and_that_of_a_table_begins_a_target(
    shop: Database, pipeline: MakePipeline
) -> None:
    one = pipeline(shop)
    one.once()
    one.write('rename = { "public.orders" = "sales", "public.sold.at" = "sold_at" }')
    with pytest.raises(TablesUnfinished):
        one.once()
    assert len(rows(one, "sales", "public")) == 20
    assert one.table("orders").target == f"{one.lake}/public/sales"
    assert "other names of columns" in str(one.table("sold").error)
    assert [*rows(one, "sold", "public")[0]] == ["id", "at"]
    assert run_command(["copy", str(one.path), "--yes", "public.sold"]) == 0
    shop.execute("INSERT INTO sold VALUES (9, 9)", "DELETE FROM orders WHERE id > 1")
    one.once()
    assert {"id": 9, "sold_at": 9} in rows(one, "sold", "public")
    assert len(rows(one, "sales", "public")) == 1
    assert len(rows(one, "orders", "public")) == 20
    assert differing(one) == set()
