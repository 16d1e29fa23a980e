"""Which indexes prove a key; the server says what it lets one do."""

from __future__ import annotations

import psycopg
import pytest
from tests.support.databases import MakeDatabase

from pgsluice.catalog.tables.keys import prove_keys
from pgsluice.catalog.tables.tables import leaf_filenodes
from pgsluice.embedded import EmbeddedServer
from pgsluice.replication import connect_sql

TABLES = """
CREATE TABLE primary_key (a int PRIMARY KEY, b int);
CREATE TABLE pair (a int NOT NULL, b int NOT NULL, UNIQUE (b, a));
CREATE TABLE none (a int NOT NULL, b int);
CREATE INDEX ON none (a);
CREATE TABLE nullable (a int UNIQUE, b int);
CREATE TABLE half (a int NOT NULL, b int, UNIQUE (a, b));
CREATE TABLE partial (a int NOT NULL, b int);
CREATE UNIQUE INDEX ON partial (a) WHERE b > 0;
CREATE TABLE computed (a int NOT NULL, b int);
CREATE UNIQUE INDEX ON computed (abs(a));
CREATE TABLE delayed (a int PRIMARY KEY DEFERRABLE, b int);
CREATE TABLE excluded (a int NOT NULL, EXCLUDE (a WITH =));
CREATE TABLE invalid (a int NOT NULL, b int);
INSERT INTO invalid VALUES (1), (1);
CREATE TABLE parts (a int NOT NULL, b int NOT NULL) PARTITION BY LIST (b);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
CREATE UNIQUE INDEX parts_1_key ON parts_1 (a);
CREATE UNIQUE INDEX parts_2_key ON parts_2 (a, b);
CREATE TABLE bare (LIKE parts) PARTITION BY LIST (b);
CREATE TABLE bare_1 PARTITION OF bare FOR VALUES IN (1);
CREATE TABLE bare_2 PARTITION OF bare FOR VALUES IN (2);
CREATE UNIQUE INDEX ON bare_1 (a);
CREATE TABLE by_value (LIKE parts) PARTITION BY RANGE (abs(b));
CREATE TABLE by_value_1 PARTITION OF by_value FOR VALUES FROM (0) TO (9);
CREATE UNIQUE INDEX ON by_value_1 (a, b);
"""
PROVED = {
    "primary_key (a)": "primary_key_pkey",
    "primary_key (b, a)": "primary_key_pkey",
    "pair (a, b)": "pair_b_a_key",
    "parts (a, b)": "parts_1_key and those like it",
}
NOT_PROVED = (
    "primary_key (b)", "pair (a)", "none (a)", "nullable (a)", "half (a)", "half (a, b)",
    "partial (a)", "computed (a)", "delayed (a)", "excluded (a)", "invalid (a)", "parts (a)",
    "bare (a, b)", "by_value (a, b)",
)  # fmt: skip


def proved(dsn: str, keys: tuple[str, ...]) -> dict[str, str]:
    """The indexes by which the catalog proves keys of tables."""
    found = {}
    with connect_sql(dsn) as connection:
        for text in keys:
            table, _, columns = text.rstrip(")").partition(" (")
            title = f"public.{table}"
            ((oid,),) = connection.execute("SELECT %s::regclass::oid", [title]).fetchall()
            leaves = leaf_filenodes(connection, [oid])
            index = prove_keys(connection, {oid: columns.split(", ")}, leaves)
            if oid in index:
                found[text] = index[oid]
    return found


def test_which_keys_are_proved(each_server: EmbeddedServer, database: MakeDatabase) -> None:
    shop = database(each_server)
    shop.execute(TABLES)
    with pytest.raises(psycopg.errors.UniqueViolation):
        shop.execute("CREATE UNIQUE INDEX CONCURRENTLY ON invalid (a)")
    assert proved(shop.dsn, (*PROVED, *NOT_PROVED)) == PROVED
    if each_server.programs.major >= 11:
        shop.execute("CREATE UNIQUE INDEX parts_whole ON parts (b, a)")
        assert proved(shop.dsn, ("parts (a, b)",)) == {"parts (a, b)": "parts_whole"}


def test_not_null_that_existing_rows_may_break(
    pg18: EmbeddedServer, database: MakeDatabase
) -> None:
    """attnotnull is true: the server even takes such an index as the replica identity."""
    shop = database(pg18)
    shop.execute(
        "CREATE TABLE t (a int UNIQUE)",
        "INSERT INTO t VALUES (NULL), (NULL)",
        "ALTER TABLE t ADD CONSTRAINT t_a NOT NULL a NOT VALID",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_a_key",
    )
    assert proved(shop.dsn, ("t (a)",)) == {}
    shop.execute("DELETE FROM t", "ALTER TABLE t VALIDATE CONSTRAINT t_a")
    assert proved(shop.dsn, ("t (a)",)) == {"t (a)": "t_a_key"}


def test_the_server_lets_a_nullable_column_into_no_replica_identity(
    each_server: EmbeddedServer, database: MakeDatabase
) -> None:
    shop = database(each_server)
    shop.execute("CREATE TABLE t (a int NOT NULL, b int, UNIQUE (a, b))")
    using = "ALTER TABLE t REPLICA IDENTITY USING INDEX t_a_b_key"
    with pytest.raises(psycopg.errors.WrongObjectType, match="nullable"):
        shop.execute(using)
    shop.execute("ALTER TABLE t ALTER b SET NOT NULL", using)
    with pytest.raises(psycopg.errors.InvalidTableDefinition, match="replica identity"):
        shop.execute("ALTER TABLE t ALTER b DROP NOT NULL")


def test_a_key_without_overlaps(pg18: EmbeddedServer, database: MakeDatabase) -> None:
    shop = database(pg18)
    shop.execute("CREATE TABLE t (a int4range, b daterange, PRIMARY KEY (a, b WITHOUT OVERLAPS))")
    assert proved(shop.dsn, ("t (a, b)", "t (a)")) == {"t (a, b)": "t_pkey"}
