"""Whether the catalog changed since the last question: each change is seen, and seen once."""

from __future__ import annotations

import pytest

from pgsluice.catalog.changes import CatalogChanges, is_older_xid
from pgsluice.embedded import EmbeddedServer
from pgsluice.replication import connect_sql

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, a int)",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "CREATE TABLE r (a int) PARTITION BY LIST (a)",
    "CREATE TABLE l PARTITION OF r FOR VALUES IN (1)",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE pair AS (x int, y text)",
    "CREATE PUBLICATION p FOR TABLE t",
    "INSERT INTO t SELECT i FROM generate_series(1, 100) i",
)
CHANGES = (
    "ALTER TABLE t ADD c int",
    "ALTER TABLE t RENAME c TO d",
    "ALTER TABLE t DROP d",
    "ALTER TABLE t ALTER a TYPE bigint",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "ALTER TABLE t DROP CONSTRAINT t_pkey",
    "ALTER TABLE t RENAME TO u",
    "ALTER SCHEMA public RENAME TO elsewhere",
    "ALTER SCHEMA elsewhere RENAME TO public",
    "ALTER PUBLICATION p ADD TABLE other",
    "ALTER PUBLICATION p DROP TABLE other",
    "ALTER PUBLICATION p SET (publish = 'insert')",
    "ALTER TABLE r DETACH PARTITION l",
    "ALTER TABLE r ATTACH PARTITION l FOR VALUES IN (1)",
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "ALTER TYPE mood ADD VALUE 'low'",
    "ALTER TYPE pair ADD ATTRIBUTE z int",
    "TRUNCATE other",
    "VACUUM FULL other",
    "DROP TABLE other",
    "DROP PUBLICATION p",
    "CREATE PUBLICATION p FOR ALL TABLES",
)
NO_CHANGES = (
    "UPDATE t SET a = 1",
    "ANALYZE t",
    "VACUUM FREEZE t",
    "CREATE TEMP TABLE staging (id int PRIMARY KEY)",
    "CREATE TABLE pg_temp.two AS SELECT * FROM t",
    "VACUUM FREEZE pg_catalog.pg_class",
    "CREATE INDEX ON l (a); ROLLBACK",
)


def test_each_change_is_seen_once(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(*SETUP)
    changes = CatalogChanges()
    with connect_sql(db.dsn) as connection:
        assert changes.have_come(connection)
        assert not changes.have_come(connection)
        for statement in NO_CHANGES:
            db.execute(f"BEGIN; {statement}" if "ROLLBACK" in statement else statement)
            assert not changes.have_come(connection), statement
        for statement in CHANGES:
            db.execute(statement)
            assert changes.have_come(connection), statement
            assert not changes.have_come(connection), statement
        changes.forget()
        assert changes.have_come(connection)


def test_a_change_of_a_transaction_that_was_open(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(*SETUP)
    changes = CatalogChanges()
    with connect_sql(db.dsn) as connection, db.connect() as migration:
        migration.execute("BEGIN; SAVEPOINT a; ALTER TABLE t ADD c int; RELEASE a")
        assert changes.have_come(connection)
        db.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")  # a later one is over before it
        assert changes.have_come(connection)
        assert not changes.have_come(connection)
        migration.execute("ALTER TYPE pair ADD ATTRIBUTE z int; COMMIT")
        assert changes.have_come(connection)
        assert not changes.have_come(connection)


def test_another_server_process_may_have_another_history(pg18: EmbeddedServer, database) -> None:
    db = database(pg18)
    other = database(pg18)
    changes = CatalogChanges()
    with connect_sql(db.dsn) as one, connect_sql(other.dsn) as two:
        assert changes.have_come(one)
        assert changes.have_come(two)
        assert changes.have_come(one)


@pytest.mark.parametrize(("xid", "other", "expected"), [(4, 5, True), (5, 5, False)])
def test_transaction_ids_wrap_around(xid: int, other: int, *, expected: bool) -> None:
    for epoch in (0, 1, 7):
        for shift in (0, 2**31, 2**32 - 5):
            position = (epoch << 32) + other + shift
            assert is_older_xid((xid + shift) % 2**32, position) is expected
