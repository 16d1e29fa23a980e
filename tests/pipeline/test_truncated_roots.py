"""TRUNCATE of a partitioned table waits for a look that knows all partitions, however long."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.partition_cases import CASES, make
from tests.support.pipeline import MakePipeline

from pgsluice.spool import find_record
from pgsluice.subscription.lifecycle import table_events
from pgsluice.subscription.refresh.looks import CatalogLooks


def test_a_root_that_is_truncated_while_a_look_takes_long(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of another table have the batch tried again and again meanwhile."""
    use_local_spark(monkeypatch)
    one = pipeline(shop := database())
    make(shop, "root", CASES["dropped"])
    shop.execute("CREATE TABLE beside (id serial PRIMARY KEY)")
    look, change = CatalogLooks.look, table_events.BatchFailed.change
    one_looks, attempts = threading.Lock(), list[str]()

    def looking(looks: CatalogLooks) -> None:
        with one_looks:
            look(looks)

    def changing(failed: Any, *arguments: Any) -> Any:
        attempts.append(failed.failure.message)
        return change(failed, *arguments)

    def is_tried_often() -> bool:
        shop.execute("INSERT INTO beside DEFAULT VALUES")
        return len(attempts) > 4

    monkeypatch.setattr(CatalogLooks, "look", looking)
    monkeypatch.setattr(table_events.BatchFailed, "change", changing)
    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: any(t.is_active for t in one.record().tables.values()))
        one.wait_applied()
        with one_looks:  # no look of before may see the TRUNCATE
            shop.execute("TRUNCATE root", "INSERT INTO root VALUES (1, 1, 'again')")
            one.wait_until(is_tried_often, why="the batch is tried often")
            assert one.table("root").is_active
        one.wait_applied()
    one.assert_equal("root", "beside")
    assert one.table("root").copy_number == 1
