"""A partition that comes with rows: only its rows are read, and the others stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline

from pgsluice.spool import find_record
from pgsluice.subscription.copies import copy_run


def test_a_partition_that_is_attached_with_rows_is_loaded_alone(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of it change before the snapshot, and after it; some leave it, and others come."""
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 50_000)
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE root (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE old PARTITION OF root FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO root SELECT i, 0, 'old' FROM generate_series(0, 500) i",
        "CREATE TABLE late (LIKE root INCLUDING ALL)",
        "INSERT INTO late SELECT i, 0, repeat('late', 20) FROM generate_series(1000, 4000) i",
    )
    changes = (
        "UPDATE root SET n = n + 1 WHERE id % 7 = 0",
        "DELETE FROM root WHERE id % 100 = {0}",
        "UPDATE root SET id = 900 + {0} WHERE id = 2005 + {0}",
        "UPDATE root SET id = 4500 + {0} WHERE id = 105 + {0}",
        "INSERT INTO root SELECT i * 10 + {0}, 9, 'new' FROM generate_series(500, 520) i",
    )

    def change(number: int) -> None:
        shop.execute(*(statement.format(number) for statement in changes))

    read_source, is_attached = copy_run.read_source, False

    changed = list[int]()

    def changing(*arguments: Any) -> Any:
        if is_attached and not changed:  # a copy that begins again finds them made
            changed.append(2)
            change(2)  # after the snapshot was taken
        return read_source(*arguments)

    monkeypatch.setattr(copy_run, "read_source", changing)
    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: any(t.is_active for t in one.record().tables.values()))
        one.wait_applied()
        before, is_attached = one.table("root"), True
        shop.execute("ALTER TABLE root ATTACH PARTITION late FOR VALUES FROM (1000) TO (6000)")
        change(1)
        one.wait_until(lambda: one.table("root").source.fingerprint != before.source.fingerprint)
        one.wait_until(lambda: one.table("root").is_active)
        change(3)
        one.wait_applied()
        after = one.table("root")
    one.assert_equal("root")
    assert after.copy_number == before.copy_number, "the table was not copied again"
    assert after.copied.position > before.copied.position
    assert after.partitions.load == ()
