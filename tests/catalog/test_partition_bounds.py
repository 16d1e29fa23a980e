"""Bounds of partitions as conditions; the server says which partition has a row."""

from __future__ import annotations

import pytest
from tests.support.databases import Database, MakeDatabase

from pgsluice.catalog.partitions.bounds import PartitionBound, fetch_with_bounds, partition_bounds
from pgsluice.embedded import EmbeddedServer
from pgsluice.facts import LeafBound, RelationFacts
from pgsluice.replication import connect_sql

TABLES = """
CREATE TABLE ints (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE ints_low PARTITION OF ints FOR VALUES FROM (MINVALUE) TO (-5);
CREATE TABLE ints_mid PARTITION OF ints FOR VALUES FROM (-5) TO (10) PARTITION BY LIST (id);
CREATE TABLE ints_mid_some PARTITION OF ints_mid FOR VALUES IN (1, -2, 3);
CREATE TABLE ints_mid_rest PARTITION OF ints_mid DEFAULT;
CREATE TABLE ints_high PARTITION OF ints FOR VALUES FROM (20) TO (MAXVALUE);
CREATE TABLE ints_rest PARTITION OF ints DEFAULT;
INSERT INTO ints SELECT generate_series(-20, 40);
CREATE TABLE pairs ("A b" int, c text COLLATE "C", PRIMARY KEY ("A b", c))
    PARTITION BY RANGE ("A b", c);
CREATE TABLE pairs_1 PARTITION OF pairs FOR VALUES FROM (1, 'b') TO (1, 'd');
CREATE TABLE pairs_2 PARTITION OF pairs FOR VALUES FROM (1, 'd') TO (3, 'it''s, (x)');
CREATE TABLE pairs_3 PARTITION OF pairs FOR VALUES FROM (5, MINVALUE) TO (7, MAXVALUE);
CREATE TABLE pairs_4 PARTITION OF pairs FOR VALUES FROM (MINVALUE, MINVALUE) TO (0, MINVALUE);
CREATE TABLE pairs_5 PARTITION OF pairs FOR VALUES FROM (8, MAXVALUE) TO (MAXVALUE, MAXVALUE);
CREATE TABLE pairs_rest PARTITION OF pairs DEFAULT;
INSERT INTO pairs SELECT a, c FROM generate_series(-1, 11) a,
    unnest('{a,b,c,d,"it","it''s, (w)","it''s, (x)","it''s, (y)",z}'::text[]) c;
CREATE TABLE times (at timestamptz, k text, PRIMARY KEY (at, k)) PARTITION BY LIST (k);
CREATE TABLE times_a PARTITION OF times FOR VALUES IN ('a', 'A ''x''') PARTITION BY RANGE (at);
CREATE TABLE times_a_1 PARTITION OF times_a FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE times_a_2 PARTITION OF times_a FOR VALUES FROM ('2024-02-01') TO (MAXVALUE);
CREATE TABLE times_b PARTITION OF times FOR VALUES IN ('b');
INSERT INTO times SELECT '2024-01-01 00:00:00+03'::timestamptz + i * interval '12 hours', k
    FROM generate_series(1, 90) i, unnest('{a,b,"A ''x''"}'::text[]) k;
CREATE TABLE listed (t int, h int) PARTITION BY LIST (t);
CREATE TABLE listed_0 PARTITION OF listed FOR VALUES IN (1, NULL, 5);
CREATE TABLE listed_1 PARTITION OF listed FOR VALUES IN (2) PARTITION BY HASH (h);
CREATE TABLE listed_1_0 PARTITION OF listed_1 FOR VALUES WITH (MODULUS 2, REMAINDER 0)
    PARTITION BY LIST (h);
CREATE TABLE listed_1_0_rest PARTITION OF listed_1_0 DEFAULT;
CREATE TABLE listed_1_1 PARTITION OF listed_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE listed_rest PARTITION OF listed DEFAULT;
CREATE TABLE nothing (t int) PARTITION BY LIST (t);
CREATE TABLE nothing_0 PARTITION OF nothing FOR VALUES IN (NULL);
INSERT INTO listed SELECT nullif(i % 7, 0), i FROM generate_series(1, 99) i;
INSERT INTO nothing VALUES (NULL);
"""
WITHOUT = """
CREATE TABLE hashed (id int) PARTITION BY HASH (id);
CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE computed (id int) PARTITION BY RANGE (abs(id));
CREATE TABLE computed_0 PARTITION OF computed FOR VALUES FROM (0) TO (9);
CREATE TABLE collated (t text) PARTITION BY LIST (t COLLATE "C");
CREATE TABLE collated_0 PARTITION OF collated FOR VALUES IN ('a');
CREATE TABLE patterned (t text) PARTITION BY RANGE (t text_pattern_ops);
CREATE TABLE patterned_0 PARTITION OF patterned FOR VALUES FROM ('a') TO ('b');
CREATE TABLE alone (t int) PARTITION BY LIST (t);
CREATE TABLE alone_rest PARTITION OF alone DEFAULT;
CREATE TABLE plain (t int);
"""


def _with_tables(server: EmbeddedServer, database: MakeDatabase, statements: str) -> Database:
    if server.programs.major < 11:
        pytest.skip("no default and no hash partitions, and no keys of partitioned tables")
    db = database(server)
    db.execute(*filter(str.strip, statements.split(";")))
    return db


def _bounds(dsn: str) -> dict[str, dict[str, PartitionBound]]:
    """The bounds of all tables by the names of table and leaf."""
    with connect_sql(dsn) as connection:
        rows = connection.execute("SELECT oid, relname FROM pg_class WHERE relkind IN ('r', 'p')")
        names = {int(oid): name for oid, name in rows.fetchall()}
        bounds = partition_bounds(connection, names)
    return {
        names[root]: {names[leaf]: bound for leaf, bound in leaves.items()}
        for root, leaves in bounds.items()
    }


def test_each_row_fulfils_the_condition_of_its_own_leaf_only(
    each_server: EmbeddedServer, database
) -> None:
    db = _with_tables(each_server, database, TABLES)
    bounds = _bounds(db.dsn)
    expected = {"ints": 6, "pairs": 6, "times": 4, "times_a": 2, "ints_mid": 2, "nothing": 1}
    assert {root: len(bounds[root]) for root in expected} == expected
    for root in expected:
        for partition, bound in bounds[root].items():
            below = f"tableoid IN (SELECT relid FROM pg_partition_tree('{partition}'))"
            if each_server.programs.major < 12:  # no such function
                below = f"tableoid = '{partition}'::regclass"
                if partition in bounds:
                    continue
            wrong = f"({bound.condition}) IS DISTINCT FROM ({below})"
            assert db.execute(f"SELECT count(*) FROM {root} WHERE {wrong}") == [(0,)], bound
    assert bounds["times"]["times_a_1"].columns == {"at", "k"}
    assert bounds["times_a"]["times_a_1"].columns == {"at"}
    assert bounds["pairs"]["pairs_1"].columns == {"A b", "c"}


def test_what_facts_say_of_the_bound_of_a_leaf(each_server: EmbeddedServer, database) -> None:
    """That of its own among the rows of the table above it, and whether it has had another one."""
    db = _with_tables(each_server, database, TABLES + WITHOUT)
    db.execute(
        "ALTER TABLE ints DETACH PARTITION ints_high",
        "ALTER TABLE ints ATTACH PARTITION ints_high FOR VALUES FROM (20) TO (50)",
        "GRANT SELECT ON ints_low TO PUBLIC",
        "BEGIN; CREATE TABLE made (id int PRIMARY KEY); "
        "ALTER TABLE ints ATTACH PARTITION made FOR VALUES FROM (50) TO (60); COMMIT",
    )
    with connect_sql(db.dsn) as connection:
        rows = connection.execute("SELECT oid, relname FROM pg_class WHERE relkind IN ('r', 'p')")
        names = {int(oid): name for oid, name in rows.fetchall()}
        facts = fetch_with_bounds(connection, names)
    found = {names[oid]: each.bound for oid, each in facts.items() if each.bound is not None}
    oids = {name: oid for oid, name in names.items()}
    below = "(id < '-5')", ("id",), True
    assert found["ints_low"] == LeafBound(oids["ints"], *below)
    some = found["ints_mid_some"]
    assert (some.parent, some.columns, some.is_only) == (oids["ints_mid"], ("id",), True)
    assert not found["ints_high"].is_only
    assert not found["made"].is_only
    for name in ("ints_rest", "hashed_0", "computed_0", "collated_0", "patterned_0"):
        assert found[name].condition == "", name
    assert not {"ints", "ints_mid", "plain"} & found.keys()
    for oid in (oids["ints_low"], oids["plain"]):
        assert RelationFacts.from_json(facts[oid].to_json()) == facts[oid]
    assert "bound" not in facts[oids["plain"]].to_json()


def test_partitions_whose_own_bound_cannot_be_said_have_that_of_the_one_above(
    each_server: EmbeddedServer, database
) -> None:
    """Their rows fulfil it, as others do. It stays the same, whichever partitions come and go."""
    db = _with_tables(each_server, database, TABLES)
    bounds = _bounds(db.dsn)["listed"]
    ((parent,),) = db.execute("SELECT 'listed_1'::regclass::oid::int")
    assert {name: (bound.condition, bound.is_fixed) for name, bound in bounds.items()} == {
        "listed_0": ("t IN (1, 5) OR t IS NULL", True),
        "listed_1": ("t IN (2)", True),
        "listed_1_0": ("t IN (2)", False),
        "listed_1_0_rest": ("t IN (2)", False),
        "listed_1_1": ("t IN (2)", False),
        "listed_rest": ("NOT ((t IN (1, 5) OR t IS NULL) OR (t IN (2)))", False),
    }
    assert (bounds["listed_1"].parent, bounds["listed_1_1"].parent) == (0, parent)


def test_leaves_whose_rows_their_columns_do_not_tell(each_server: EmbeddedServer, database) -> None:
    db = _with_tables(each_server, database, WITHOUT)
    assert not any(_bounds(db.dsn).values())
