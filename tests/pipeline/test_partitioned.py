"""``partition_by``, from the source to readers: copies, batches, verification, another setting."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.verifying import verify

from pgsluice.errors import TablesUnfinished

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("changelog")]


def partitions(one: Pipeline, table: str) -> set[tuple[str | None, ...]]:
    delta = one.delta(table)
    names = delta.metadata().partition_columns
    return {tuple(each[name] for name in names) for each in delta.partitions()}


def test_rows_move_between_partitions(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, region text, at timestamptz, note text)",
        "INSERT INTO orders SELECT g, 'r' || g % 3, timestamptz '2026-01-01 00:00Z' + g * interval"
        " '1 day', repeat('n', 9) FROM generate_series(0, 99) AS g",
        "CREATE TABLE loose (a int, at date)",
        "ALTER TABLE loose REPLICA IDENTITY FULL",
        "INSERT INTO loose SELECT g % 5, date '2026-01-01' + g FROM generate_series(0, 99) AS g",
    )
    one = pipeline(shop)
    before = (
        ', partition_by = { "public.orders" = ["region", "month(at)"], "public.loose" = ["a"] }'
    )
    one.sink_options = before
    one.write()
    one.once()
    assert len(partitions(one, "orders")) == 12
    shop.execute(
        "UPDATE orders SET region = 'moved', at = at + interval '1 year' WHERE id < 10",
        "DELETE FROM orders WHERE region = 'r0'",
        "ALTER TABLE orders ADD COLUMN more int DEFAULT 7",
        "INSERT INTO orders VALUES (200, NULL, NULL, 'new')",
        "UPDATE loose SET a = 9 WHERE at < '2026-01-11'",
        "DELETE FROM loose WHERE a = 1",
    )
    one.once()
    one.assert_equal("orders", "loose")
    assert partitions(one, "loose") == {(text,) for text in "02349"}
    assert {("moved", "2027-01"), (None, None)} < partitions(one, "orders")
    assert verify(one, capsys)[0] == 0
    one.sink_options = ', partition_by = { "public.orders" = ["day(at)"] }'
    one.write()
    shop.execute("UPDATE orders SET note = 'x'", "INSERT INTO loose VALUES (3, NULL)")
    with pytest.raises(TablesUnfinished, match="partitioned by"):
        one.once()
    one.copy("public.orders")
    one.copy("public.loose")
    one.once()
    one.assert_equal("orders", "loose")
    assert not one.delta("loose").metadata().partition_columns
    assert ("2026-02-01",) in partitions(one, "orders")
