"""A database on PostgreSQL 18 with the tables of ``statements.SETUP``, for a whole module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from tests.conftest import Database
from tests.publication.statements import PUBLICATIONS, SETUP

from pgsluice.catalog.source_tables import SourceCatalog, source_catalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication.load import load_publications
from pgsluice.publication.model import Publications
from pgsluice.replication import connect_sql


@pytest.fixture(scope="module")
def oracle(pg18: EmbeddedServer) -> Iterator[Database]:
    """The server that knows: tables and publications are there; tests roll back what they do."""
    one = Database(pg18, f"test_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(pg18.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {one.name}")
        one.execute(SETUP, PUBLICATIONS)
        yield one
        connection.execute(f"DROP DATABASE {one.name} WITH (FORCE)")


@pytest.fixture(scope="module")
def catalog(oracle: Database) -> SourceCatalog:
    with connect_sql(oracle.dsn) as connection:
        return source_catalog(connection)


@pytest.fixture(scope="module")
def publications(catalog: SourceCatalog) -> Publications:
    """Ours, made by the statements that made the server's."""
    return load_publications(PUBLICATIONS, catalog)
