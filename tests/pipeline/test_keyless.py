"""Tables without a key: a change finds one of the rows that are equal to the old row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.subscription.verify import Verification, verify

BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 120))"

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("keyless")]


def rows_of(one: Pipeline, table: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = (
        pa.RecordBatchReader.from_stream(one.delta(table).scan()).read_all().to_pylist()
    )
    return read


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_one_of_equal_rows_is_changed(
    database: MakeDatabase, pipeline: MakePipeline, merge: str
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE bag (a int, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL), (2, NULL), (NULL, NULL)",
    )
    one = pipeline(shop)
    one.sink_options = f', merge = "{merge}"'
    one.write()
    one.once()
    shop.execute("DELETE FROM bag WHERE ctid = '(0,1)'")
    one.once()
    assert sorted(rows_of(one, "bag"), key=str) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
        {"a": 2, "b": None},
        {"a": None, "b": None},
    ]
    assert_verified(one, "public.bag")
