"""Targets that keep rows from before also keep columns that the table has no more."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.every_mode import assert_modes_equal, other_modes
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline

pytestmark = pytest.mark.usefixtures("local_spark")


def test_a_new_column_has_the_name_of_one_from_before_the_copy(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    one = pipeline(shop)
    one.write(other_modes(one))
    one.once()
    shop.execute("ALTER TABLE t RENAME x TO y")
    one.once()
    shop.execute("ALTER TABLE t ADD x text DEFAULT 'd'", "INSERT INTO t VALUES (3, 'c', 'e')")
    one.once()
    one.assert_equal("t")
    assert_modes_equal(one, ["t"])
