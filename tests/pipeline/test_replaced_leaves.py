"""Partitions that make room for new ones with the same keys: DROP, DETACH and TRUNCATE send no
changes for their rows, and what follows comes before a look at the catalog. In every mode, and in
every version of the targets of current rows."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from tests.support.databases import MakeDatabase
from tests.support.every_mode import assert_modes_equal, other_modes
from tests.support.local_spark import local_spark as local_spark
from tests.support.partition_cases import publish_via_root
from tests.support.pipeline import MakePipeline

from pgsluice.subscription.verify import Verification, verify
from pgsluice.verification import DeltaRows

NEW = "CREATE TABLE {t}_new PARTITION OF {t} FOR VALUES FROM (100) TO (200)"
CHANGES = {
    "dropped": ("DROP TABLE {t}_2", NEW, "INSERT INTO {t} VALUES (100, 1)"),
    "dropped_other": ("DROP TABLE {t}_2", NEW, "INSERT INTO {t} VALUES (100, 2), (120, 5)"),
    "changed": (
        "DROP TABLE {t}_2",
        NEW,
        "INSERT INTO {t} VALUES (100, 2)",
        "UPDATE {t} SET a = 3 WHERE id = 100",
        "UPDATE {t} SET id = 7 WHERE id = 1",
    ),
    "moved": (
        "BEGIN",
        "ALTER TABLE {t} DETACH PARTITION {t}_2",
        NEW,
        "INSERT INTO {t} SELECT * FROM {t}_2",
        "DROP TABLE {t}_2",
        "COMMIT",
    ),
    "emptied": ("TRUNCATE {t}_2", "INSERT INTO {t} VALUES (100, 1), (110, 2)"),
}
ON_WRITE = """
[[subscription]]
name = "on_write"
[subscription.sink]
type = "delta"
path = "{lake}-on_write/{{schema}}/{{table}}"
merge = "on_write"
history_retention = "1h"
"""

pytestmark = pytest.mark.usefixtures("local_spark")


@pytest.mark.parametrize(
    "is_via_root", [False, pytest.param(True, marks=pytest.mark.pg(">= 13"))], ids=["leaf", "root"]
)
def test_inserts_of_keys_whose_rows_have_gone_unseen(
    is_via_root: bool, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    for t in CHANGES:
        shop.execute(
            f"CREATE TABLE {t} (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
            f"CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (100)",
            f"CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (100) TO (200)",
            f"INSERT INTO {t} VALUES (1, 1), (100, 1), (110, 1)",
        )
    if is_via_root:
        publish_via_root(shop, CHANGES)
    one = pipeline(shop)
    one.sink_options = ', merge = "on_read", history_retention = "1h"'
    one.write(other_modes(one) + ON_WRITE.format(lake=one.lake_uri))
    one.once()
    shop.execute(*(text.format(t=t) for t, texts in CHANGES.items() for text in texts))
    one.once()
    one.assert_equal(*CHANGES)
    assert_modes_equal(one, [*CHANGES])
    for subscription in one.config.subscriptions:
        for each in verify(one.config, subscription, Verification()):
            assert each.comparison is not None, each
            assert each.comparison.equal, each
    for lake, t in product(("lake", "lake-on_write"), CHANGES):
        assert_unique_in_all_versions(one.folder / lake / "public" / t)


def assert_unique_in_all_versions(target: Path) -> None:
    newest = DeltaRows(target).version
    assert newest > 0
    for version in range(newest + 1):
        read = DeltaRows(target, version).batches(["id"])
        keys = Counter(key for batch in read for key in batch.column("id").to_pylist())
        assert set(keys.values()) == {1}, f"{target.name}, version {version}: {keys}"
