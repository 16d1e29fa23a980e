"""What the replica identity must hold: the oracle is the server, which refuses UPDATE or DELETE."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import psycopg
import pytest
from tests.support.databases import fresh_database

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication import check_replica_identity, load_publications
from pgsluice.publication.publishing.replica_identity import ReplicaIdentity
from pgsluice.sql import SqlRefused

_TABLES = """
CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, c text,
                s int GENERATED ALWAYS AS (b + 1) STORED);
CREATE UNIQUE INDEX t_b ON t (b);
CREATE TABLE v (a int PRIMARY KEY, v int GENERATED ALWAYS AS (a + 1));
CREATE TABLE root (a int, b int NOT NULL, c text, PRIMARY KEY (a)) PARTITION BY RANGE (a);
CREATE TABLE leaf (c text, b int NOT NULL, a int NOT NULL);
ALTER TABLE root ATTACH PARTITION leaf DEFAULT;
"""
_IDENTITIES = (
    "DEFAULT",
    "FULL",
    "NOTHING",
    "USING INDEX {table}_b",
)
_PUBLICATIONS = (
    "FOR TABLE {table}",
    "FOR TABLE {table} WITH (publish = 'insert')",
    "FOR TABLE {table} WITH (publish = 'insert, update')",
    "FOR TABLE {table} WITH (publish = 'delete')",
    "FOR TABLE {table} WHERE (a > 1)",
    "FOR TABLE {table} WHERE (b > 1 AND a = 1)",
    "FOR TABLE {table} WHERE (c = 'x') WITH (publish = 'insert')",
    "FOR TABLE {table} WHERE (c = 'x') WITH (publish = 'delete')",
    "FOR TABLE {table} (a)",
    "FOR TABLE {table} (b, c)",
    "FOR TABLE {table} (a, b, c)",
    "FOR TABLE {table} (a, b) WHERE (a = b)",
    "FOR ALL TABLES",
    "FOR TABLES IN SCHEMA public",
    "FOR TABLE {table} WITH (publish_generated_columns = stored)",
)
_ROOTED = (
    "FOR TABLE root WHERE (a > 1) WITH (publish_via_partition_root)",
    "FOR TABLE root WHERE (b > 1) WITH (publish_via_partition_root)",
    "FOR TABLE root WHERE (b > 1), leaf (a) WITH (publish_via_partition_root)",
    "FOR TABLE root, leaf WHERE (c = 'x')",
    "FOR TABLE root (a, c) WITH (publish_via_partition_root)",
    "FOR TABLE root (b, c) WITH (publish_via_partition_root)",
)
_CASES = [
    *(("t", *one) for one in product(_IDENTITIES, _PUBLICATIONS)),
    *(("leaf", *one) for one in product((*_IDENTITIES[:3], "USING INDEX leaf_b"), _ROOTED)),
    *(("v", identity, "FOR TABLE v") for identity in _IDENTITIES[:3]),
    *(("v", identity, "FOR TABLE v (a)") for identity in _IDENTITIES[:3]),
]


@pytest.fixture(scope="module")
def session(pg18: EmbeddedServer) -> Iterator[psycopg.Connection[Any]]:
    with fresh_database(pg18) as database:
        database.execute(_TABLES, "CREATE UNIQUE INDEX leaf_b ON leaf (b)")
        with psycopg.connect(database.dsn) as connection:
            yield connection


@pytest.mark.parametrize(("table", "identity", "objects"), _CASES)
def test_the_server_refuses_the_same_changes(
    session: psycopg.Connection[Any], table: str, identity: str, objects: str
) -> None:
    statement = f"CREATE PUBLICATION p {objects.format(table=table)}"
    try:
        session.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity.format(table=table)}")
        session.execute(statement)
        catalog = source_catalog(session)
        publications = list(load_publications(statement, catalog))
        source = catalog.table("public", table)
        assert source is not None
        for action, dml in (
            ("update", f"UPDATE {table} SET a = a"),
            ("delete", f"DELETE FROM {table}"),
        ):
            ours = _ours(action, publications, source, catalog)
            assert ours == _server(session, dml), action
            # The Relation message in force says the same as the catalog.
            wired = ReplicaIdentity(source.replica_identity, frozenset(source.identity_columns))
            assert _ours(action, publications, source, catalog, wired) == ours
    finally:
        session.rollback()


def _server(session: psycopg.Connection[Any], dml: str) -> tuple[str | None, ...] | None:
    try:
        with session.transaction():
            session.execute(dml)
    except psycopg.Error as error:
        return error.diag.message_primary, error.diag.message_detail, error.diag.message_hint
    return None


def _ours(action: Any, *arguments: Any) -> tuple[str | None, ...] | None:
    try:
        check_replica_identity(action, *arguments)
    except SqlRefused as error:
        return error.message, error.detail, error.server_hint
    return None
