"""What publications send, from the catalog's tables: equal to the view, and without its locks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.support.waiting import HANGS_S, await_that

from pgsluice.catalog.publications.published import FilterTexts, relations_of
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.catalog.tables.tables import leaf_filenodes
from pgsluice.definitions.published import disagreeing
from pgsluice.embedded import EmbeddedServer
from pgsluice.replication import connect_sql

VERSIONS = range(10, 19)

TABLES = (
    "CREATE SCHEMA s",
    "CREATE TABLE plain (id int PRIMARY KEY, a int, b text)",
    "CREATE TABLE s.plain (id int PRIMARY KEY, a int)",
    'CREATE TABLE s."Other one" (id int PRIMARY KEY)',
    "CREATE UNLOGGED TABLE unlogged (id int)",
    "CREATE VIEW v AS SELECT 1 AS a",
    "CREATE MATERIALIZED VIEW m AS SELECT 1 AS a",
    "CREATE SEQUENCE numbers",
    "CREATE FOREIGN DATA WRAPPER nowhere",
    "CREATE SERVER far FOREIGN DATA WRAPPER nowhere",
    "CREATE FOREIGN TABLE s.far_away (id int) SERVER far",
    "CREATE TABLE parent (id int)",
    "CREATE TABLE child (b int) INHERITS (parent)",
    "CREATE TABLE dropped_column (a int, gone int, b int)",
    "ALTER TABLE dropped_column DROP gone",
    "CREATE TABLE root (a int, b int) PARTITION BY LIST (a)",
    "CREATE TABLE s.mid PARTITION OF root FOR VALUES IN (1) PARTITION BY LIST (b)",
    "CREATE TABLE low PARTITION OF s.mid FOR VALUES IN (1)",
    "CREATE TABLE high PARTITION OF root FOR VALUES IN (2)",
    "CREATE TABLE s.root (a int) PARTITION BY LIST (a)",
    "CREATE TABLE leaf PARTITION OF s.root FOR VALUES IN (1)",
    "CREATE FOREIGN TABLE s.far_leaf PARTITION OF s.mid FOR VALUES IN (2) SERVER far",
)
PUBLICATIONS = {
    10: (
        "FOR ALL TABLES",
        "FOR TABLE plain, s.plain, dropped_column WITH (publish = 'insert')",
        "FOR TABLE parent",
        "FOR TABLE ONLY parent",
        "FOR TABLE low, high",
        "",
    ),
    13: (
        "FOR ALL TABLES WITH (publish_via_partition_root)",
        "FOR TABLE root",
        "FOR TABLE root WITH (publish_via_partition_root)",
        "FOR TABLE root, s.mid, low, leaf",
        "FOR TABLE root, s.mid, low, leaf WITH (publish_via_partition_root)",
        "FOR TABLE s.mid, low WITH (publish_via_partition_root)",
    ),
    15: (
        "FOR TABLES IN SCHEMA s",
        "FOR TABLES IN SCHEMA s WITH (publish_via_partition_root)",
        "FOR TABLES IN SCHEMA public WITH (publish_via_partition_root)",
        "FOR TABLES IN SCHEMA public, s WITH (publish_via_partition_root)",
        "FOR TABLES IN SCHEMA s, TABLE plain WHERE (a > 5), s.plain WHERE (a > 5)",
        "FOR TABLE plain (id, b) WHERE (a > 5), dropped_column (b)",
        "FOR TABLE high (a) WHERE (a > 5), low, leaf",
        "FOR TABLE root (b, a) WHERE (a > 5), high (a) WITH (publish_via_partition_root)",
    ),
    18: (
        "FOR TABLE generated, plain WITH (publish_generated_columns = stored)",
        "FOR TABLE generated (id, g)",
    ),
}
# The view of 15 also has generated columns, which are never sent.
VIEW = """
SELECT c.oid::int, t.schemaname, t.tablename, to_jsonb(t) -> 'attnames', to_jsonb(t) ->> 'rowfilter'
FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = %s
"""


def _plain_columns(connection: psycopg.Connection[Any], oid: int) -> list[str]:
    generated = "a.attgenerated = ''" if connection.info.server_version >= 120000 else "true"
    query = f"""
        SELECT attname FROM pg_catalog.pg_attribute a
        WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped AND {generated} ORDER BY attnum
    """
    return [name for (name,) in connection.execute(query.encode()).fetchall()]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_what_the_view_shows(
    version: int, servers: Callable[[int], EmbeddedServer], database
) -> None:
    db = database(servers(version))
    db.execute(*TABLES)
    if version >= 12:
        db.execute("CREATE TABLE generated (id int, g int GENERATED ALWAYS AS (id * 2) STORED)")
    forms = [form for since, some in PUBLICATIONS.items() if version >= since for form in some]
    names = {f"p{number}": form for number, form in enumerate(forms)}
    db.execute(*(f"CREATE PUBLICATION {name} {form}" for name, form in names.items()))
    with connect_sql(db.dsn) as connection:
        for name, form in names.items():
            view = {row[0]: row[1:] for row in connection.execute(VIEW, [name]).fetchall()}
            relations = relations_of(connection, [name])
            assert relations.keys() == view.keys(), form
            for oid, (namespace, table, columns, row_filter) in view.items():
                assert (relations[oid].namespace, relations[oid].name) == (namespace, table)
                (by,) = relations[oid].by
                assert by.row_filter == row_filter, form
                plain = _plain_columns(connection, oid)
                shown = plain if columns is None else columns
                if version == 15:
                    shown = [column for column in shown if column in plain]
                assert list(plain if by.columns is None else by.columns) == shown, form
        together = relations_of(connection, list(names))
        assert [by.publication for by in together[min(together)].by] == sorted(
            by.publication for by in together[min(together)].by
        )


@pytest.mark.parametrize("version", [14, 18])
def test_a_leaf_whose_detach_is_pending_is_neither_sent_nor_attached(
    version: int, servers: Callable[[int], EmbeddedServer], database
) -> None:
    db = database(servers(version))
    db.execute(
        "CREATE TABLE r (a int) PARTITION BY LIST (a)",
        "CREATE TABLE k PARTITION OF r FOR VALUES IN (1)",
        "CREATE TABLE l PARTITION OF r FOR VALUES IN (2)",
        "CREATE PUBLICATION p FOR TABLE r",
    )
    with db.connect() as reader, connect_sql(db.dsn) as connection:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM r")  # the second transaction of the detach waits for it
        with db.connect() as detaching, ThreadPoolExecutor(1) as pool:
            detach = "ALTER TABLE r DETACH PARTITION k CONCURRENTLY"
            detached = pool.submit(detaching.execute, detach)
            await_that(lambda: waits_for(connection, reader) == [(detaching.info.backend_pid,)])
            detaching.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                detached.result()
        view = connection.execute("SELECT tablename FROM pg_catalog.pg_publication_tables")
        names = [relation.name for relation in relations_of(connection, ["p"]).values()]
        assert names == [name for (name,) in view.fetchall()] == ["l"]
        query = "SELECT oid::bigint FROM pg_catalog.pg_class WHERE relname IN ('r', 'l') ORDER BY 1"
        root, leaf = (oid for (oid,) in connection.execute(query).fetchall())
        assert set(leaf_filenodes(connection, [root])[root]) == {leaf}


def waits_for(connection: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> list[Any]:
    """The processes of the server that wait for a session."""
    query = "SELECT pid FROM pg_catalog.pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return connection.execute(query, [other.info.backend_pid]).fetchall()


def test_it_does_not_wait_for_locks_and_reads_in_the_snapshot(
    each_server: EmbeddedServer, database
) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 7)", "CREATE PUBLICATION p FOR TABLE t"
    )
    with db.connect() as migration, connect_sql(db.dsn) as connection:
        connection.execute(f"SET statement_timeout = '{HANGS_S:g}s'")
        migration.execute("BEGIN")
        migration.execute("LOCK TABLE t")
        assert [relation.name for relation in relations_of(connection, ["p"]).values()] == ["t"]
        assert source_catalog(connection).table("public", "t") is not None
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        migration.execute("ALTER PUBLICATION p DROP TABLE t")
        migration.execute("COMMIT")
        assert [relation.name for relation in relations_of(connection, ["p"]).values()] == ["t"]
        connection.execute("ROLLBACK")
        assert relations_of(connection, ["p"]) == {}


@pytest.mark.pg(">= 15")
def test_a_row_filter_is_printed_once(database) -> None:
    db = database()
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
        "CREATE PUBLICATION p FOR TABLE t WHERE (a > 5)",
    )
    filters = FilterTexts()

    def row_filter() -> str | None:
        (relation,) = relations_of(connection, ["p"], filters).values()
        return relation.by[0].row_filter

    with db.connect() as migration, connect_sql(db.dsn) as connection:
        connection.execute("SET lock_timeout = '100ms'")
        assert row_filter() == "(a > 5)"
        migration.execute("BEGIN")
        migration.execute("LOCK TABLE t")
        assert row_filter() == "(a > 5)", "it does not wait for the lock"
        migration.execute("ALTER TABLE t RENAME a TO c")
        migration.execute("ALTER TABLE t RENAME b TO a")
        migration.execute("COMMIT")
        assert row_filter() == "(c > 5)"
        migration.execute("ALTER PUBLICATION p SET TABLE t WHERE (a > 5)")
        assert row_filter() == "(a > 5)"
        migration.execute("ALTER PUBLICATION p SET TABLE t")
        assert row_filter() is None


LISTS = (
    ("t (id, a, b)", "t"),
    ("t (b, a, id)", "t (id, a, b)"),
    ("t (id, a)", "t (a, id)"),
    ("t (id, a)", "t"),
    ("t (id, a)", "t (id, b)"),
)
WITH_GENERATED = " WITH (publish_generated_columns = stored)"
GENERATED = (
    *(
        (first, f"t{WITH_GENERATED}")
        for first in ("t", "t (id, a)", "t (a, b, id)", "t (id,a,b,g)")
    ),
    *((first, f"w{WITH_GENERATED}") for first in ("w", "w (id)", f"w (id){WITH_GENERATED}")),
    ("w", "w (id)"),
    ("x", f"x{WITH_GENERATED}"),
    ("x (id)", f"x{WITH_GENERATED}"),
)
"""From 18 on; w has a virtual generated column, and x none."""


@pytest.mark.parametrize("version", [15, 16, 18])
def test_publications_disagree_where_the_walsender_says_so(servers, database, version: int) -> None:
    db = database(servers(version))
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, gone int, b int,"
        " g int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE t DROP gone",
        "CREATE TABLE x (id int PRIMARY KEY, a int)",
    )
    pairs = LISTS
    if version >= 18:
        pairs += GENERATED
        db.execute("CREATE TABLE w (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) VIRTUAL)")
    for number, (first, second) in enumerate(pairs):
        names = [f"first{number}", f"second{number}"]
        db.execute(
            f"CREATE PUBLICATION {names[0]} FOR TABLE {first}",
            f"CREATE PUBLICATION {names[1]} FOR TABLE {second}",
        )
    slot = f"slot_{db.name}"
    db.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    db.execute("INSERT INTO t VALUES (1)", "INSERT INTO x VALUES (1)")
    if version >= 18:
        db.execute("INSERT INTO w VALUES (1)")
    try:
        for number, lists in enumerate(pairs):
            names = [f"first{number}", f"second{number}"]
            with db.connect() as connection:
                disagreement = disagreeing(relations_of(connection, names).values())
                refusal = disagreement and disagreement.what
                decode = "SELECT pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)"
                options = ["proto_version", "1", "publication_names", ",".join(names)]
                try:
                    connection.execute(decode, [slot, options])
                    said = None
                except psycopg.Error as error:
                    said = error.diag.message_primary
            assert refusal == said, lists
    finally:
        db.execute(f"SELECT pg_drop_replication_slot('{slot}')")
