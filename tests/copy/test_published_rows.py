"""Which rows and columns a copy has: exactly those of ``SELECT … WHERE filter`` in its snapshot.

Tables are read in several ranges, after others have changed every row and the partitions' rows
have moved. The judge is a query in the same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.copy.test_copies import Copier
from tests.support.databases import Database, MakeDatabase

from pgsluice.catalog.publications.managed import ensure_publications
from pgsluice.config.model import PublicationsConfig, SubscriptionConfig
from pgsluice.copy.job import CopyResult, CopyWork
from pgsluice.published.discovery import source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.replication import connect_sql
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot

ROWS = 2000
_TABLES = f"""
CREATE TABLE plain (id int PRIMARY KEY, region text, n int, secret text);
INSERT INTO plain SELECT i, (ARRAY['eu', 'us', NULL])[1 + i % 3], i % 100, repeat('s', i % 50)
FROM generate_series(1, {ROWS}) i;
CREATE TABLE root (id int, region text, n int, secret text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (500);
CREATE TABLE mid PARTITION OF root FOR VALUES FROM (500) TO (1500) PARTITION BY RANGE (id);
CREATE TABLE mid_1 PARTITION OF mid FOR VALUES FROM (500) TO (1000);
CREATE TABLE mid_2 PARTITION OF mid FOR VALUES FROM (1000) TO (1500);
CREATE TABLE high (secret text, n int, gone int, region text, id int PRIMARY KEY);
ALTER TABLE high DROP gone;
ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (1500) TO (MAXVALUE);
ALTER TABLE low ADD PRIMARY KEY (id);
ALTER TABLE mid_1 ADD PRIMARY KEY (id);
ALTER TABLE mid_2 ADD PRIMARY KEY (id);
INSERT INTO root SELECT * FROM plain;
ANALYZE;
"""
_CHANGES = """
UPDATE plain SET region = 'eu', n = -n;
DELETE FROM plain WHERE id % 5 = 0;
WITH moved AS (DELETE FROM root WHERE id % 2 = 0 AND id < 1000 RETURNING *)
INSERT INTO root SELECT id + 100000, 'us', n, secret FROM moved;
DELETE FROM root WHERE id % 3 = 0;
UPDATE root SET n = -n;
"""
Works = Callable[[Copier], Mapping[str, CopyWork]]


def make(shop: Database, folder: Path, *statements: str) -> Copier:
    shop.execute(_TABLES, *statements)
    one = Copier(shop, folder)
    one.most_bytes = 24 * 1024
    return one


def works(
    one: Copier, publications: Collection[str], rules: PublicationRules | None = None
) -> dict[str, CopyWork]:
    """A task's work for each table, by name."""
    with one.shop.connect() as connection:
        connection.execute("SET search_path = ''")
        return {
            table.facts.name: CopyWork(
                table.facts,
                table.facts.namespace,
                table.facts.name,
                table.columns,
                table.row_filter,
                copy_number=1,
                unlisted=table.unlisted,
            )
            for table in source_tables(connection, list(publications), rules)
        }


def assert_copied(
    one: Copier, tables: Mapping[str, CopyWork], expected: Mapping[str, str], user: str = ""
) -> None:
    """Each table's copy has the rows of a query in the copy's snapshot, and no others."""
    assert tables.keys() == expected.keys()
    with one.snapshot() as snapshot:
        rows = {table: select(one, snapshot, query) for table, query in expected.items()}
        one.shop.execute(_CHANGES)
        for table, work in tables.items():
            result = one.copy(work, snapshot, user=user or None)
            assert isinstance(result, CopyResult), result
            assert len(one.portions[table]) > 1, f"{table} is read in several ranges"
            assert result.rows == len(rows[table])
            assert copied(one, table) == rows[table], table


def select(one: Copier, snapshot: Snapshot, query: str) -> list[tuple[str, ...]]:
    """The rows of a query in the snapshot, and the columns' names first."""
    with connect_sql(one.shop.dsn) as connection:
        import_snapshot(connection, snapshot)
        connection.execute("SET LOCAL search_path = public")
        cursor = connection.execute(query.encode())
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return in_order([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])


def copied(one: Copier, table: str) -> list[tuple[str, ...]]:
    return in_order(one.rows(table))


def in_order(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(f"{name}={value}" for name, value in sorted(row.items())) for row in rows)


@pytest.mark.pg(">= 15")
def test_the_servers_filters_and_lists(database: MakeDatabase, tmp_path: Path) -> None:
    """Filters of several publications are ORed; a partitioned table is published as a whole.

    They publish inserts only, so that others may change columns that are not in the key.
    """
    one = make(
        database(),
        tmp_path,
        "CREATE PUBLICATION a FOR TABLE plain (id, region) WHERE (region = 'eu' OR id % 7 = 0),"
        " root (id, n) WHERE (n > 50)"
        " WITH (publish_via_partition_root, publish = 'insert')",
        "CREATE PUBLICATION b FOR TABLE plain (id, region) WHERE (region IS NULL AND n < 20)"
        " WITH (publish = 'insert')",
    )
    assert_copied(
        one,
        works(one, ["a", "b"]),
        {
            "plain": "SELECT id, region FROM plain WHERE (region = 'eu' OR id % 7 = 0)"
            " OR (region IS NULL AND n < 20)",
            "root": "SELECT id, n FROM root WHERE n > 50",
        },
    )


@pytest.mark.pg(">= 15")
def test_the_servers_filters_and_lists_of_leaves(database: MakeDatabase, tmp_path: Path) -> None:
    """Each leaf has its own filter and list, and one is not published at all."""
    one = make(
        database(),
        tmp_path,
        "CREATE PUBLICATION a FOR TABLE low (id, region) WHERE (region <> 'us'),"
        " mid_1 (id, n), high (id, n) WHERE (n >= 90 OR region = 'us')"
        " WITH (publish = 'insert')",
    )
    assert_copied(
        one,
        works(one, ["a"]),
        {
            "root": "SELECT id, region, NULL::int AS n FROM low WHERE region <> 'us'"
            " UNION ALL SELECT id, NULL, n FROM mid_1"
            " UNION ALL SELECT id, NULL, n FROM high WHERE n >= 90 OR region = 'us'"
        },
    )


@pytest.mark.parametrize("via_root", [True, False])
def test_publications_of_pgsluice(via_root: bool, database: MakeDatabase, tmp_path: Path) -> None:
    one = make(database(), tmp_path)
    statement = (
        "CREATE PUBLICATION ours FOR TABLE plain (id, n, region)"
        " WHERE (region = 'eu' OR (n BETWEEN 20 AND 30 AND region IS NOT NULL)), "
    )
    if via_root:
        statement += "root (id, region) WHERE (n < 40 AND id % 2 = 1)"
        statement += " WITH (publish_via_partition_root)"
        query = "SELECT id, region FROM root WHERE n < 40 AND id % 2 = 1"
    else:
        statement += "low WHERE (n < 40), mid_2, high (id, region, n, secret) WHERE (region = 'eu')"
        query = ""
    rules = PublicationRules(
        PublicationsConfig(sql=statement),
        SubscriptionConfig(
            name="lake",
            sink={"type": "delta", "path": "lake/{table}"},
            publications=("ours",),
        ),
    )
    with one.shop.connect() as connection:
        names = ensure_publications(connection, ["p"]).names
    expected = {
        "plain": "SELECT id, n, region FROM plain WHERE region = 'eu'"
        " OR (n BETWEEN 20 AND 30 AND region IS NOT NULL)"
    }
    if via_root:
        expected["root"] = query
    else:
        expected |= {
            "low": "SELECT * FROM low WHERE n < 40",
            "mid_2": "SELECT * FROM mid_2",
            "high": "SELECT * FROM high WHERE region = 'eu'",
        }
    assert_copied(one, works(one, names, rules), expected)


@pytest.mark.parametrize("which", ["of a leaf", "of no table", "bypassed"])
def test_row_level_security(which: str, database: MakeDatabase, tmp_path: Path) -> None:
    """The policies of the table that a publication names count; those of its leaves do not."""
    shop = database()
    role = f"{shop.name}_reader"
    one = make(
        shop,
        tmp_path,
        "CREATE PUBLICATION p FOR TABLE plain, root WITH (publish_via_partition_root)",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON plain, root TO {role}",
    )
    if which == "of a leaf":
        shop.execute(
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
            "ALTER TABLE mid_1 ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY some_rows ON mid_1 USING (n = 0)",
        )
    if which == "bypassed":
        shop.execute(
            "ALTER TABLE plain ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE root ENABLE ROW LEVEL SECURITY",
            f"ALTER ROLE {role} BYPASSRLS",
        )
    expected = {"plain": "SELECT * FROM plain", "root": "SELECT * FROM root"}
    try:
        assert_copied(one, works(one, ["p"]), expected, user=role)
    finally:
        shop.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
