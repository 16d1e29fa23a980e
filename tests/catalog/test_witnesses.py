"""Catalog rows that differ after a change that left the same in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.catalog.publications.published import PublishedCatalog
from pgsluice.catalog.tables.relations import fetch_many
from pgsluice.catalog.tables.witnesses import CatalogWitnesses, fetch_witnesses
from pgsluice.embedded import EmbeddedServer
from pgsluice.replication import connect_sql
from pgsluice.schema_rules.known import SourceFingerprint

SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE pair AS (x int, y text)",
    "CREATE TABLE t (id int PRIMARY KEY, a mood, b pair, d int)",
    "CREATE PUBLICATION p FOR TABLE t",
)


def _oid(db, name: str) -> int:
    return int(db.execute(f"SELECT '{name}'::regclass::oid::bigint")[0][0])


def _fetch(db) -> CatalogWitnesses:
    types = [oid for (oid,) in db.execute("SELECT oid::bigint FROM pg_type WHERE oid >= 16384")]
    with connect_sql(db.dsn) as connection:
        return fetch_witnesses(connection, PublishedCatalog.read(connection, ["p"]), types)


def _of(db, name: str = "t") -> SourceFingerprint:
    return _fetch(db).add_to(SourceFingerprint({}, {}, frozenset()), _oid(db, name))


@pytest.mark.pg(">= 13")
def test_a_partition_is_listed_by_the_table_above_it(database) -> None:
    """The row of its own means nothing then: it may go, as when a table becomes a partition."""
    db = database()
    db.execute(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF t FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE more (id int)",
        "CREATE PUBLICATION p FOR TABLE t, part, more",
    )
    before = _of(db)
    assert len(before.listings) == 1
    db.execute("ALTER TABLE t ATTACH PARTITION more FOR VALUES FROM (10) TO (19)")
    assert _of(db).listings == before.listings
    db.execute("ALTER PUBLICATION p DROP TABLE more, part")
    assert _of(db).listings == before.listings
    db.execute("ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE part")
    assert not _of(db).listings & before.listings


def test_a_table_out_of_a_publication_and_in_again(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(*SETUP, "CREATE TABLE other (id int)")
    before = _of(db)
    assert before.kept_logged == {_oid(db, "t")}
    db.execute("ALTER PUBLICATION p ADD TABLE other", "CREATE PUBLICATION q FOR TABLE t")
    db.execute("ALTER PUBLICATION p SET TABLE t, other", "GRANT SELECT ON t TO PUBLIC")
    now = _of(db)
    assert now.written != before.written  # GRANT
    assert replace(now, written=before.written) == before
    db.execute("ALTER PUBLICATION p SET (publish = 'insert, update, delete')")
    altered = _of(db)
    assert not before.publications & altered.publications
    assert altered.listings == before.listings
    db.execute("ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t")
    assert before.listings - _of(db).listings
    db.execute("DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES")
    all_tables = _of(db)
    assert _of(db, "other").listings == all_tables.listings != frozenset()
    assert all_tables.kept_logged == frozenset()
    db.execute("DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES")
    assert all_tables.listings - _of(db).listings


def test_a_schema_out_of_a_publication_and_in_again(server: EmbeddedServer, database) -> None:
    if server.programs.major < 15:
        pytest.skip("publications list schemas since 15")
    db = database()
    db.execute(
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (id int)",
        "CREATE TABLE u (id int)",
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA s",
    )
    before = _of(db, "s.t")
    assert len(before.listings) == len(before.row_types) == 1
    assert _of(db, "u").listings == _of(db, "u").row_types == frozenset()
    db.execute("GRANT SELECT ON s.t TO PUBLIC", "ALTER TABLE s.t ADD c int", "VACUUM FULL s.t")
    assert _of(db, "s.t").row_types == before.row_types
    db.execute("ALTER TABLE s.t SET SCHEMA public", "ALTER TABLE t SET SCHEMA s")
    moved = _of(db, "s.t")
    assert moved.listings == before.listings
    assert not moved.row_types & before.row_types
    db.execute("ALTER PUBLICATION p DROP TABLES IN SCHEMA s")
    db.execute("ALTER PUBLICATION p ADD TABLES IN SCHEMA s")
    assert before.listings - _of(db, "s.t").listings


def test_a_partition_detached_and_attached(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE r (a int, b int) PARTITION BY LIST (a)",
        "CREATE TABLE m PARTITION OF r FOR VALUES IN (1) PARTITION BY LIST (b)",
        "CREATE TABLE l PARTITION OF m FOR VALUES IN (1)",
        "CREATE TABLE k PARTITION OF r FOR VALUES IN (2)",
        "CREATE PUBLICATION p FOR TABLE l",
        "CREATE TABLE parent (a int)",
        "CREATE TABLE child () INHERITS (parent)",
    )
    before = _of(db, "r")
    assert set(before.attachments) == {_oid(db, name) for name in ("m", "l", "k")}
    assert len(before.listings) == len(_of(db, "m").listings) == 1  # the leaf's
    assert before.of_partitions == {_oid(db, "l"): tuple(before.listings)}
    assert _of(db, "k").listings == frozenset()
    leaf = _of(db, "l").attachments
    assert leaf == {o: before.attachments[o] for o in (_oid(db, "l"), _oid(db, "m"))}
    assert _of(db, "parent").attachments == {}  # inheritance is no partitioning
    db.execute("ALTER TABLE k ADD CHECK (a = 2)", "GRANT SELECT ON k TO PUBLIC")
    assert replace(_of(db, "r"), written=before.written) == before
    db.execute("ALTER TABLE r DETACH PARTITION m")
    db.execute("ALTER TABLE r ATTACH PARTITION m FOR VALUES IN (1)")
    now, m = _of(db, "r"), _oid(db, "m")
    assert now.attachments.keys() == before.attachments.keys()
    assert {o for o in now.attachments if now.attachments[o] != before.attachments[o]} == {m}
    later = _of(db, "l").attachments
    assert {o for o in later if later[o] != leaf[o]} == {m}


@pytest.mark.parametrize(
    ("statements", "is_same"),
    [
        (("ALTER TYPE mood RENAME VALUE 'ok' TO 'x'", "ALTER TYPE mood RENAME VALUE 'x' TO 'ok'"),
            False),
        (("ALTER TYPE pair ADD ATTRIBUTE z int", "ALTER TYPE pair DROP ATTRIBUTE z"), False),
        (("ALTER TYPE pair DROP ATTRIBUTE x",), False),
        (("ALTER TYPE pair RENAME ATTRIBUTE x TO w", "ALTER TYPE mood RENAME TO temper"), True),
    ],
)  # fmt: skip
def test_how_values_are_printed(
    each_server: EmbeddedServer, database, statements: tuple[str, ...], *, is_same: bool
) -> None:
    db = database(each_server)
    db.execute(*SETUP)
    before = _fetch(db).types
    db.execute(*statements)
    assert (_fetch(db).types == before) is is_same


def test_a_new_label_leaves_the_others(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(*SETUP)
    before = _fetch(db).types
    db.execute("ALTER TYPE mood ADD VALUE 'low' BEFORE 'sad'")
    now = _fetch(db).types
    (mood,) = (oid for oid, parts in before.items() if "attributes" not in parts)
    assert before[mood].items() < now[mood].items()


def test_columns_that_came_and_went(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(*SETUP, "ALTER TABLE t ADD c int", "ALTER TABLE t DROP c")
    assert _of(db).attnums == 5


def test_values_of_rows_from_before_a_column(pg18: EmbeddedServer, database) -> None:
    db = database(pg18)
    db.execute(
        "CREATE TABLE r (a int) PARTITION BY LIST (a)",
        "CREATE TABLE l PARTITION OF r FOR VALUES IN (1)",
        "INSERT INTO r VALUES (1)",
        "ALTER TABLE r ADD c int DEFAULT 7, ADD n int",
        "ALTER TABLE r ALTER c DROP DEFAULT",
    )
    with connect_sql(db.dsn) as connection:
        root, leaf = _oid(db, "r"), _oid(db, "l")
        facts = fetch_many(connection, [root, leaf])
    found = {oid: {each.name: each.missing for each in facts[oid].columns} for oid in (root, leaf)}
    assert found == {
        root: {"a": None, "c": None, "n": None},
        leaf: {"a": None, "c": "7", "n": None},
    }
