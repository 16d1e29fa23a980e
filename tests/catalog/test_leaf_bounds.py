"""Bounds of partitions as conditions; the server says which partition has a row."""

from __future__ import annotations

import pytest

from pgsluice.catalog import LeafBound, leaf_bounds
from pgsluice.embedded import EmbeddedServer
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
CREATE TABLE listed (t int) PARTITION BY LIST (t);
CREATE TABLE listed_0 PARTITION OF listed FOR VALUES IN (1, NULL);
CREATE TABLE alone (t int) PARTITION BY LIST (t);
CREATE TABLE alone_rest PARTITION OF alone DEFAULT;
CREATE TABLE plain (t int);
"""


def _bounds(dsn: str) -> dict[str, dict[str, LeafBound]]:
    """The bounds of all tables by the names of table and leaf."""
    with connect_sql(dsn) as connection:
        rows = connection.execute("SELECT oid, relname FROM pg_class WHERE relkind IN ('r', 'p')")
        names = {int(oid): name for oid, name in rows.fetchall()}
        bounds = leaf_bounds(connection, names)
    return {
        names[root]: {names[leaf]: bound for leaf, bound in leaves.items()}
        for root, leaves in bounds.items()
    }


def test_each_row_fulfils_the_condition_of_its_own_leaf_only(
    each_server: EmbeddedServer, database
) -> None:
    if each_server.programs.major < 11:
        pytest.skip("no default and no hash partitions, and no keys of partitioned tables")
    db = database(each_server)
    db.execute(*filter(str.strip, TABLES.split(";")))
    bounds = _bounds(db.dsn)
    assert {root: len(bounds[root]) for root in ("ints", "pairs", "times")} == {
        "ints": 5,
        "pairs": 6,
        "times": 3,
    }
    for root in ("ints", "pairs", "times", "times_a", "ints_mid"):
        for leaf, bound in bounds[root].items():
            wrong = f"({bound.condition}) IS DISTINCT FROM (tableoid = '{leaf}'::regclass)"
            assert db.execute(f"SELECT count(*) FROM {root} WHERE {wrong}") == [(0,)], bound
    assert bounds["times"]["times_a_1"].columns == {"at", "k"}
    assert bounds["times_a"]["times_a_1"].columns == {"at"}
    assert bounds["pairs"]["pairs_1"].columns == {"A b", "c"}


def test_leaves_whose_rows_their_columns_do_not_tell(each_server: EmbeddedServer, database) -> None:
    if each_server.programs.major < 11:
        pytest.skip("no default and no hash partitions, and no keys of partitioned tables")
    db = database(each_server)
    db.execute(*filter(str.strip, WITHOUT.split(";")))
    assert not any(_bounds(db.dsn).values())
