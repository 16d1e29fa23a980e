"""Columns that are changed between a copy's snapshot and its lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.copy.test_copies import Copier
from tests.support.databases import MakeDatabase

from pgsluice.copy.job import CopyResult, CopyWork
from pgsluice.errors import Failure, Remedy

_CHANGED = {
    "dropped": "ALTER TABLE {t} DROP a",
    "renamed": "ALTER TABLE {t} RENAME a TO d",
    "swapped": "BEGIN; ALTER TABLE {t} RENAME a TO old; ALTER TABLE {t} RENAME b TO a;"
    " ALTER TABLE {t} RENAME old TO b; COMMIT",
    "dropped and made again": "ALTER TABLE {t} DROP a; ALTER TABLE {t} ADD a int",
    "of another type": "ALTER TABLE {t} ALTER v TYPE text",
}
_OTHERS = {
    "added": "ALTER TABLE {t} ADD d int",
    "with a default": "ALTER TABLE {t} ALTER a SET DEFAULT 7",
    "of a domain": "ALTER DOMAIN whole ADD CHECK (VALUE < 99)",
}


def copied(
    change: str, shop: Copier, table: str, **work: str | tuple[str, ...]
) -> CopyResult | Failure:
    """Plan a copy, change the table, and copy it."""
    with shop.snapshot() as snapshot:
        planned: CopyWork = replace(shop.works()[table], **work)
        shop.shop.execute(change.format(t=table))
        return shop.copy(planned, snapshot)


@pytest.fixture
def shop(database: MakeDatabase, tmp_path: Path) -> Copier:
    shop = database()
    shop.execute(
        "CREATE DOMAIN whole AS int",
        "CREATE TABLE plain (id int PRIMARY KEY, a int, b int, w whole, v varchar(9))",
        "INSERT INTO plain SELECT i, i, -i, i, 'v' FROM generate_series(1, 9) i",
        "CREATE TABLE root (id int, a int, b int, w whole, v varchar(9)) PARTITION BY RANGE (id)",
        # Its columns have other numbers than those of the root.
        "CREATE TABLE leaf (gone int, v varchar(9), w whole, b int, a int, id int)",
        "ALTER TABLE leaf DROP gone",
        "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10)",
        "INSERT INTO root SELECT * FROM plain",
        "CREATE PUBLICATION p FOR TABLE plain, leaf",
    )
    return Copier(shop, tmp_path)


@pytest.mark.parametrize("table", ["plain", "root"])
def test_a_copy_begins_again_if_its_columns_are_others_now(table: str, shop: Copier) -> None:
    for name, change in _CHANGED.items():
        result = copied(change, shop, table)
        assert isinstance(result, Failure), name
        assert result.remedy is Remedy.RETRY, name
        assert "had other columns when the snapshot was taken" in result.message
        assert isinstance(copied("SELECT 1", shop, table), CopyResult), name
        if name in ("dropped", "renamed"):
            shop.shop.execute(f"ALTER TABLE {table} ADD IF NOT EXISTS a int")


@pytest.mark.parametrize("table", ["plain", "root"])
def test_other_changes_of_columns_stop_no_copy(table: str, shop: Copier) -> None:
    for name, change in _OTHERS.items():
        assert isinstance(copied(change, shop, table), CopyResult), name


def test_a_column_that_only_the_filter_names(shop: Copier) -> None:
    swap = _CHANGED["swapped"]
    result = copied(swap, shop, "plain", columns=("id", "v"), row_filter="a > 4")
    assert isinstance(result, Failure)
    assert "had other columns" in result.message
    assert isinstance(copied(swap, shop, "plain", columns=("id", "v")), CopyResult)
