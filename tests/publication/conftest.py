"""A database on PostgreSQL 18 with the tables of ``statements.SETUP``, for a whole module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.conftest import Database
from tests.publication.statements import PUBLICATIONS, SETUP

from pgsluice.catalog.source_tables import SourceCatalog, source_catalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication.load import load_publications
from pgsluice.publication.model import Publications
from pgsluice.replication import connect_sql


@contextmanager
def fresh_database(server: EmbeddedServer) -> Iterator[Database]:
    """An empty database for a whole module; it goes with its slots."""
    one = Database(server, f"test_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {one.name}")
        try:
            yield one
        finally:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                f" WHERE database = '{one.name}'"
            )
            connection.execute(f"DROP DATABASE {one.name} WITH (FORCE)")


@pytest.fixture(scope="module")
def oracle(pg18: EmbeddedServer) -> Iterator[Database]:
    """The server that knows: tables and publications are there; tests roll back what they do."""
    with fresh_database(pg18) as one:
        one.execute(SETUP, PUBLICATIONS)
        yield one


@pytest.fixture(scope="module")
def catalog(oracle: Database) -> SourceCatalog:
    with connect_sql(oracle.dsn) as connection:
        return source_catalog(connection)


@pytest.fixture(scope="module")
def publications(catalog: SourceCatalog) -> Publications:
    """Ours, made by the statements that made the server's."""
    return load_publications(PUBLICATIONS, catalog)
