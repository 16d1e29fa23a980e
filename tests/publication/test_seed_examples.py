"""Every worked example of the manual's chapter on row filters, with its tables, rows and results.

The sources are PostgreSQL 18, and 12, which has no row filters. The publications are pgsluice's
on both; the server's own publication sends everything. A subscriber's table is printed as the
manual prints it: a row that is updated goes to the end.

Source: the manual's "Row Filters".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from tests.publication.native import Sent
from tests.publication.publication_stream import Stream
from tests.support.databases import Database, Servers

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication import load_publications, resolve, subscribed
from pgsluice.replication import connect_sql
from pgsluice.sql import any_of

MakeDatabase = Callable[..., Database]
Row = tuple[str | None, ...]

_TABLES = """
CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c));
CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d));
CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g));
"""
_PUBLICATIONS = {
    "p1": "CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');",
    "p2": "CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99);",
    "p3": "CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10);",
}
_INSERTS = (
    "INSERT INTO t1 VALUES (2, 102, 'NSW')",
    "INSERT INTO t1 VALUES (3, 103, 'QLD')",
    "INSERT INTO t1 VALUES (4, 104, 'VIC')",
    "INSERT INTO t1 VALUES (5, 105, 'ACT')",
    "INSERT INTO t1 VALUES (6, 106, 'NSW')",
    "INSERT INTO t1 VALUES (7, 107, 'NT')",
    "INSERT INTO t1 VALUES (8, 108, 'QLD')",
    "INSERT INTO t1 VALUES (9, 109, 'NSW')",
)
_PARENT = """
CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a);
CREATE TABLE child PARTITION OF parent DEFAULT;
"""
_PARENT_ROWS = (
    "INSERT INTO parent VALUES (2), (4), (6)",
    "INSERT INTO child VALUES (3), (5), (7)",
)
_VIA_ROOT = (
    "CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)"
    " WITH (publish_via_partition_root=true);"
)
_VIA_LEAVES = (
    "CREATE PUBLICATION p4 FOR TABLE parent, child WHERE (a >= 5)"
    " WITH (publish_via_partition_root=false);"
)


def _versions() -> list[int]:
    named = os.environ.get("PGSLUICE_TEST_VERSION")
    return [int(named)] if named else [18, 12]


@pytest.fixture(scope="module", params=_versions(), ids="pg{}".format)
def source(request: pytest.FixtureRequest, servers: Servers) -> EmbeddedServer:
    """A source with row filters of its own, and one without; 12 comes from npm, or is skipped."""
    return servers(request.param)


def table(sent: Sequence[Sent], name: str, key: Sequence[str]) -> list[Row]:
    """A subscriber's table after it has applied the changes, in the heap's order."""
    rows: dict[Row, Row] = {}
    for change in sent:
        if change.relation != f"public.{name}":
            continue
        new, old = dict(change.new or ()), dict(change.old or change.new or ())
        old_key = tuple(old.get(column) for column in key)
        match change.action:
            case "T":
                rows.clear()
            case "D":
                del rows[old_key]
            case "U":
                del rows[old_key]
        if change.new is not None:
            new_key = tuple(new[column] for column in key)
            assert new_key not in rows, f"{change} comes on top of a row of the same key"
            rows[new_key] = tuple(new.values())
    return list(rows.values())


def printed(text: str) -> list[Row]:
    """Rows as psql prints them."""
    lines = [line.split("|") for line in text.strip().splitlines()]
    return [tuple(cell.strip() for cell in line) for line in lines]


# Subscription s1 of p1


def test_s1_step_by_step(database: MakeDatabase, source: EmbeddedServer) -> None:
    stream = Stream(database(source), _TABLES, *_INSERTS)

    def subscriber() -> list[Row]:
        return table(stream.sent(_PUBLICATIONS["p1"]), "t1", ("a", "c"))

    def last() -> Sent:
        return stream.sent(_PUBLICATIONS["p1"])[-1]

    # Only the rows that satisfy the filter are replicated.
    assert subscriber() == printed("""
        6 | 106 | NSW
        9 | 109 | NSW
    """)

    # The old and the new row satisfy it: the UPDATE is replicated as an UPDATE.
    stream.database.execute("UPDATE t1 SET b = 999 WHERE a = 6")
    assert last().action == "U"
    assert subscriber() == printed("""
        9 | 109 | NSW
        6 | 999 | NSW
    """)

    # Only the new row does: the UPDATE becomes an INSERT.
    stream.database.execute("UPDATE t1 SET a = 555 WHERE a = 2")
    assert last().action == "I"
    assert subscriber() == printed("""
        9   | 109 | NSW
        6   | 999 | NSW
        555 | 102 | NSW
    """)

    # Only the old row does: the UPDATE becomes a DELETE.
    stream.database.execute("UPDATE t1 SET c = 'VIC' WHERE a = 9")
    assert last().action == "D"
    assert subscriber() == printed("""
        6   | 999 | NSW
        555 | 102 | NSW
    """)
    publisher = stream.database.execute("SELECT * FROM t1")
    assert [tuple(map(str, row)) for row in publisher] == printed("""
        3   | 103 | QLD
        4   | 104 | VIC
        5   | 105 | ACT
        7   | 107 | NT
        8   | 108 | QLD
        6   | 999 | NSW
        555 | 102 | NSW
        9   | 109 | VIC
    """)

    # Neither does: nothing is replicated. A TRUNCATE has no filter.
    count = len(stream.sent(_PUBLICATIONS["p1"]))
    stream.database.execute("UPDATE t1 SET b = 1 WHERE a = 3", "DELETE FROM t1 WHERE a = 4")
    assert len(stream.sent(_PUBLICATIONS["p1"])) == count
    stream.database.execute("TRUNCATE t1")
    assert (last().action, subscriber()) == ("T", [])


# The partitioned table and p4: subscription s4


def test_s4_via_the_root(database: MakeDatabase, source: EmbeddedServer) -> None:
    stream = Stream(database(source), _PARENT, *_PARENT_ROWS)
    sent = stream.sent(_VIA_ROOT)
    assert {change.relation for change in sent} == {"public.parent"}
    assert sorted(table(sent, "parent", ("a",))) == printed("2\n3\n4")


def test_s4_via_the_partition(database: MakeDatabase, source: EmbeddedServer) -> None:
    stream = Stream(database(source), _PARENT, *_PARENT_ROWS, "TRUNCATE parent", *_PARENT_ROWS)
    sent = stream.sent(_VIA_LEAVES)
    assert {change.relation for change in sent} == {"public.child"}
    assert sorted(table(sent, "child", ("a",))) == printed("5\n6\n7")


def test_s4_through_the_root_is_emptied_with_it(
    database: MakeDatabase, source: EmbeddedServer
) -> None:
    stream = Stream(database(source), _PARENT, *_PARENT_ROWS, "TRUNCATE parent", *_PARENT_ROWS)
    sent = stream.sent(_VIA_ROOT)
    assert [change.action for change in sent] == ["I", "I", "I", "T", "I", "I", "I"]
    assert sorted(table(sent, "parent", ("a",))) == printed("2\n3\n4")


# p1, p2 and p3 together


def test_filters_of_several_publications(database: MakeDatabase, source: EmbeddedServer) -> None:
    """p2 has t1 without a filter, which cancels p1's; t2's two filters are ORed; t3 has one."""
    stream = Stream(
        database(source),
        _TABLES,
        *_INSERTS,
        "INSERT INTO t2 VALUES (10, 1, 1), (11, 99, 2), (12, 98, 3), (13, NULL, 4)",
        "INSERT INTO t3 VALUES (10, 1, 1), (11, 10, 10)",
    )
    sent = stream.sent("".join(_PUBLICATIONS.values()))
    assert len(table(sent, "t1", ("a", "c"))) == 8
    assert table(sent, "t2", ("d",)) == printed("10|1|1\n11|99|2")
    assert table(sent, "t3", ("g",)) == printed("10|1|1")


# Initial data synchronization


@pytest.mark.parametrize(
    ("names", "name", "keys"),
    [
        (["p1"], "t1", [6, 9]),
        (["p1", "p2"], "t1", [2, 3, 4, 5, 6, 7, 8, 9]),
        (["p2"], "t2", [11]),
        (["p3"], "t2", [10]),
        (["p2", "p3"], "t2", [10, 11]),
        (["p1", "p2", "p3"], "t3", [10]),
        (["p1", "every"], "t1", [2, 3, 4, 5, 6, 7, 8, 9]),
        (["p1", "updates"], "t1", [6, 7, 9]),
        (["via_root"], "parent", [2, 3, 4]),
        (["via_leaves"], "child", [5, 6, 7]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_initial_copies(
    database: MakeDatabase, source: EmbeddedServer, names: list[str], name: str, keys: list[int]
) -> None:
    """Rows that satisfy any of the filters are copied, whatever ``publish`` says."""
    shop = database(source)
    shop.execute(
        _TABLES,
        _PARENT,
        *_INSERTS,
        "INSERT INTO t2 VALUES (10, 1, 1), (11, 99, 2), (12, 98, 3), (13, NULL, 4)",
        "INSERT INTO t3 VALUES (10, 1, 1), (11, 10, 10)",
        *_PARENT_ROWS,
    )
    statements = "".join(_PUBLICATIONS.values()) + (
        "CREATE PUBLICATION every FOR ALL TABLES;"
        "CREATE PUBLICATION updates FOR TABLE t1 WHERE (a = 7) WITH (publish = 'update');"
        + _VIA_ROOT.replace("p4", "via_root")
        + _VIA_LEAVES.replace("p4", "via_leaves")
    )
    with connect_sql(shop.dsn) as connection:
        catalog = source_catalog(connection)
        given = subscribed(load_publications(statements, catalog), names)
        leaf = "child" if name == "parent" else name
        source_table = catalog.table("public", leaf)
        assert source_table is not None
        acting = resolve(given, source_table, catalog)
        assert acting is not None
        assert acting.published_as.name == name
        columns, condition = ", ".join(acting.published_columns), any_of(acting.copy_filters)
        query = f"SELECT {columns} FROM public.{name} WHERE {condition or 'true'} ORDER BY 1"
        rows = connection.execute(query.encode()).fetchall()
    assert [row[0] for row in rows] == keys
