"""What the stream cannot tell: the table is copied again, and equal."""

from __future__ import annotations

import shutil

import pytest
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline

pytestmark = pytest.mark.usefixtures("spark")


def test_columns_renamed_tables_not_sent_for_a_while_and_a_lost_record(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    tables = ("renamed", "remade", "unsent")
    for table in tables:
        shop.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a text)",
            f"INSERT INTO {table} SELECT i, 'a' || i FROM generate_series(1, 5) i",
        )
    # The user's own: nobody else changes it.
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE {", ".join(tables)}')
    one.once()
    shop.execute(
        "ALTER TABLE renamed RENAME a TO b",
        "INSERT INTO renamed VALUES (6, 'b6')",
        "ALTER TABLE remade DROP a",
        "ALTER TABLE remade ADD a text",
        "INSERT INTO remade VALUES (6, 'a6')",
        f'ALTER PUBLICATION "{shop.name}" DROP TABLE unsent',
        "DELETE FROM unsent WHERE id = 1",
    )
    one.once()
    one.assert_equal("renamed", "remade")
    shop.execute(
        f'ALTER PUBLICATION "{shop.name}" ADD TABLE unsent', "INSERT INTO unsent VALUES (6, 'a6')"
    )
    one.once()
    one.assert_equal(*tables)
    assert [one.table(table).copy_number for table in tables] == [2, 2, 2]

    # `pgsluice drop --subscription` leaves the lake alone: its copies have higher numbers than
    # the first one of the new record.
    shutil.rmtree(one.spool / "subscriptions")
    shop.execute("UPDATE renamed SET b = 'c'", "DELETE FROM remade WHERE id = 2")
    one.once()
    shop.execute("UPDATE renamed SET b = 'd'")
    one.once()
    one.assert_equal(*tables)
