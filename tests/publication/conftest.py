"""A database on PostgreSQL 18 with the tables of ``statements.SETUP``, for a whole module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.databases import Database, fresh_database
from tests.support.publication_statements import PUBLICATIONS, SETUP

from pgsluice.catalog.source_tables import SourceCatalog, source_catalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication import Publications, load_publications
from pgsluice.replication import connect_sql


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
