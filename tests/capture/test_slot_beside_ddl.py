"""DDL that commits while the server creates the slot.

The server begins with the catalog as of its FULL_SNAPSHOT state, and lacks what committed since its
BUILDING_SNAPSHOT state if an older transaction was open then (snapbuild.c). It decodes by that
catalog until the next DDL.
"""

from __future__ import annotations

import pytest
from tests.support.capturing import inserted_rows
from tests.support.databases import Database, MakeDatabase
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.capture import prepare_source, run_capture
from pgsluice.config import Config, SourceConfig, SpoolConfig

_WAITS_FOR = """
SELECT w.transactionid::text::bigint FROM pg_locks w JOIN pg_stat_activity a USING (pid)
WHERE NOT w.granted AND w.locktype = 'transactionid' AND a.query LIKE 'CREATE_REPLICATION_SLOT%'
"""


def _xid(connection) -> int:
    connection.execute("BEGIN; INSERT INTO other DEFAULT VALUES")
    return int(connection.execute("SELECT txid_current()").fetchone()[0])


def _create_slot_beside(db: Database, config: Config, ddl: str) -> None:
    """The first start, and this DDL while the server waits for a transaction that was open."""
    with db.connect() as first, db.connect() as second:
        older = _xid(first)
        with beside(lambda _: prepare_source(config, export_snapshot=False)):
            await_that(lambda: db.execute(_WAITS_FOR) == [(older,)])
            younger = _xid(second)
            db.execute(ddl)
            first.execute("COMMIT")
            await_that(lambda: db.execute(_WAITS_FOR) == [(younger,)])
            db.execute("INSERT INTO other DEFAULT VALUES")  # the server takes a catalog snapshot
            second.execute("COMMIT")


@pytest.mark.parametrize(
    ("ddl", "row"),
    [
        ("ALTER PUBLICATION {0} ADD TABLE t", (b"1", b"2")),
        ("ALTER TABLE sent ADD COLUMN c int", (b"1", b"2", b"3")),
    ],
    ids=["publication", "column"],
)
def test_the_slot_decodes_by_ddl_that_committed_meanwhile(
    database: MakeDatabase, tmp_path, ddl: str, row: tuple[bytes, ...]
) -> None:
    db = database()
    db.execute(
        "CREATE TABLE other (id serial)",
        "CREATE TABLE t (id int PRIMARY KEY, b int)",
        "CREATE TABLE sent (id int PRIMARY KEY, b int)",
        f"CREATE PUBLICATION {db.name} FOR TABLE sent",
    )
    config = Config(
        source=SourceConfig(dsn=db.dsn, slot=db.name, publications=(db.name,)),
        spool=SpoolConfig(path=tmp_path / "spool"),
    )
    _create_slot_beside(db, config, ddl.format(db.name))
    name = "t" if len(row) == 2 else "sent"
    values = ", ".join(each.decode() for each in row)
    db.execute(f"INSERT INTO {name} VALUES ({values})")
    run_capture(config, once=True)
    assert inserted_rows(config) == [row]
