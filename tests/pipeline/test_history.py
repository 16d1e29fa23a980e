"""``mode = "history"``: as of each transaction, a history has the source's rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from tests.pipeline.test_changelog import BIG, History, in_order, program
from tests.support.databases import MakeDatabase
from tests.support.histories import as_of, history_of
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.subscription.verify import Verification, verify

HISTORY = 'mode = "history"'

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("history")]


def assert_as_of(versions: pa.Table, source: History) -> None:
    """As of each of the source's transactions since the first copy, its rows are the versions."""
    first = min(versions["_valid_from"].to_pylist())
    moments = [moment for moment in source.moments if moment[0] >= first]
    assert moments
    for position, rows in moments:
        names = list(rows[0]) if rows else ["id"]
        found = as_of(versions, position)
        assert in_order(found, names) == in_order(rows, names), position


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_as_of_each_transaction_a_history_is_the_source(
    database: MakeDatabase, pipeline: MakePipeline, merge: str
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, 'old', {BIG} FROM generate_series(1, 10) i",
    )
    one = pipeline(shop)
    one.sink_options = f', merge = "{merge}"'
    one.write(HISTORY)
    one.once()
    source = History(shop, "orders")
    source.note()
    rng = random.Random(merge)
    for number in range(3):
        for _ in program(rng, source, 12):
            pass
        if number == 1:
            source.commit("TRUNCATE orders", "INSERT INTO orders VALUES (3, 'after', NULL)")
            source.commit("INSERT INTO orders VALUES (4, 'after', NULL)")
        one.once()
        if number == 1:
            one.copy("orders")
            one.once()
        versions = history_of(one.delta("orders"))
        assert_as_of(versions, source)
        assert_verified(one, "public.orders")
    closed = versions.filter(pa.compute.invert(versions["_is_current"]))
    assert len(closed) > len(source.moments)
