"""Renames and swaps: a table is its OID, and a target is its name."""

from __future__ import annotations

import signal

import pytest
from tests.support.databases import MakeDatabase
from tests.support.oracle import assert_equal
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("spark")

TABLES = (
    "plain", "silent", "moved", "twice", "first", "second", "x", "y", "z", "users",
    "users_new", "again", "fixed", "same", "other",
)  # fmt: skip
RENAMED = (
    # Plain renames, with and without changes afterwards.
    "ALTER TABLE plain RENAME TO plain_new",
    "UPDATE plain_new SET a = 10 WHERE id = 1",
    "ALTER TABLE silent RENAME TO silent_new",
    "ALTER TABLE moved SET SCHEMA other",
    "DELETE FROM other.moved WHERE id = 2",
    "ALTER TABLE twice RENAME TO twice_meanwhile",
    "INSERT INTO twice_meanwhile VALUES (60, 60)",
    "ALTER TABLE twice_meanwhile RENAME TO twice_new",
    "ALTER TABLE root RENAME TO root_new",
    "INSERT INTO root_new VALUES (3, 3), (13, 13)",
    # Two tables swap their names, three change them in a ring.
    (
        "BEGIN; ALTER TABLE first RENAME TO swap; ALTER TABLE second RENAME TO first;"
        "ALTER TABLE swap RENAME TO second; COMMIT"
    ),
    "UPDATE first SET a = 20 WHERE id = 1",
    (
        "BEGIN; ALTER TABLE x RENAME TO ring; ALTER TABLE z RENAME TO x; ALTER TABLE y RENAME TO z;"
        "ALTER TABLE ring RENAME TO y; COMMIT"
    ),
    "UPDATE y SET a = 21 WHERE id = 1",
    # The swap of an online migration.
    "BEGIN; ALTER TABLE users RENAME TO users_old; ALTER TABLE users_new RENAME TO users; COMMIT",
    "UPDATE users_old SET a = 22 WHERE id = 1",
    "UPDATE users SET a = 23 WHERE id = 2",
    # Another table under the old name.
    "ALTER TABLE again RENAME TO again_old",
    "CREATE TABLE again (id int PRIMARY KEY, w text)",
    "INSERT INTO again VALUES (1, 'another')",
    "DELETE FROM again_old WHERE id = 1",
)
FROM_TARGETS = (
    "plain_new", "silent_new", "twice_new", "root_new", "first", "second", "x", "y",
    "z", "users", "users_old", "again_old",
)  # fmt: skip
DEFINED_ANEW = (
    "ALTER TABLE fixed ADD b int DEFAULT 7, ADD c numeric(5, 2)",
    "INSERT INTO fixed VALUES (6, 6, 6, 6.66)",
    # With a new file, and no change that is sent: only a comparison tells them apart.
    "ALTER TABLE same ALTER a TYPE int USING a + 0",
    "ALTER TABLE other ALTER a TYPE int USING a + 1",
)
LEFT = ("plain", "silent", "moved", "twice", "root", "users_new")


def die(one: Pipeline, worker: str, driver: str) -> None:
    """Run until a worker and then the driver were killed, each at a failpoint of its own."""
    killed = one.folder / worker
    process = one.start("run", PGSLUICE_FAILPOINTS=f"{worker}=kill:{killed},{driver}=kill")
    assert process.wait(HANGS_S) == -signal.SIGKILL, one.log()[-3000:]
    assert killed.exists()


def test_each_name_has_the_rows_of_the_table_that_is_called_so(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    for number, table in enumerate(TABLES):
        shop.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a int)",
            f"INSERT INTO {table} SELECT i, {number} FROM generate_series(1, 5) i",
        )
    shop.execute(
        "CREATE SCHEMA other",
        "CREATE TABLE root (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE root_low PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE root_high PARTITION OF root FOR VALUES FROM (10) TO (20)",
        "INSERT INTO root VALUES (1, 1), (11, 11)",
    )
    one.once()
    copied_at = one.table("plain").copied.position
    shop.execute(*RENAMED)
    # SIGKILL of a worker that has written a target, then of the driver before it records any.
    die(one, "copy.renamed", "copy.after_renamed")
    assert any(table.old_target for table in one.record().tables.values()), one.log()[-3000:]
    shop.execute("UPDATE plain_new SET a = 11 WHERE id = 1", *DEFINED_ANEW)
    # SIGKILL of a worker that has given a target its columns, then of the driver before it
    # records what a comparison showed.
    die(one, "target.altered", "verification.compared")
    assert all(one.table(name).pending.verification for name in ("same", "other")), one.log()[
        -3000:
    ]
    one.once()
    one.assert_equal("again", "fixed", "same", "other", *FROM_TARGETS)
    assert one.table("fixed").copied.position == one.table("same").copied.position == copied_at
    with shop.connect() as connection:
        assert_equal(connection, "other.moved", one.lake / "other" / "moved")
    tables = {table.title: table for table in one.record().tables.values()}
    assert len(tables) == len(one.record().tables), "a name is one table's"
    from_source = {title for title, table in tables.items() if table.copied.position != copied_at}
    assert from_source == {"public.again", "public.other"}
    assert {name for _, name in one.record().former} == set(LEFT)
    for name in LEFT:
        assert one.delta(name).to_pyarrow_table().num_rows, "it stands still"
