"""Both sides of a table at one position."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.databases import MakeDatabase

from pgsluice.errors import SourceRefused
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots import import_snapshot, temporary_snapshot
from pgsluice.subscription.discovery import source_tables
from pgsluice.subscription.standing import compare_standing
from pgsluice.verification import ArrowRows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("TRUNCATE t", "rewritten"),
        ("TRUNCATE low", "rewritten"),
        ("VACUUM FULL high", "rewritten"),
        ("ALTER TABLE t RENAME TO old; CREATE TABLE t (id int)", "renamed"),
    ],
)
def test_a_table_that_changed_after_the_snapshot_is_not_compared(
    database: MakeDatabase, change: str, words: str
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t (PRIMARY KEY (id)) FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1), (11)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    rows = ArrowRows(pa.table({"id": pa.array([1, 11], pa.int32())}))
    with temporary_snapshot(shop.dsn, 60) as snapshot, shop.connect() as connection:
        import_snapshot(connection, snapshot)
        (table,) = source_tables(connection, ["pub"])
        assert compare_standing(connection, table, rows, TableOptions(), max_keys=1).equal
        shop.execute(change)
        with pytest.raises(SourceRefused, match=f"{words} at the source after the snapshot"):
            compare_standing(connection, table, rows, TableOptions(), max_keys=1)
