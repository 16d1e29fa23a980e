"""A database on PostgreSQL 18 for a whole module, with the tables that statements are tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.databases import Database, fresh_database
from tests.support.publication_statements import PUBLICATIONS, SETUP

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication import Publications, load_publications
from pgsluice.replication import connect_sql


@pytest.fixture(scope="module")
def oracle(pg18: EmbeddedServer) -> Iterator[Database]:
    """The server as the oracle, with tables and publications; tests roll back their changes."""
    with fresh_database(pg18) as database:
        database.execute(SETUP, PUBLICATIONS)
        yield database


@pytest.fixture(scope="module")
def catalog(oracle: Database) -> SourceCatalog:
    with connect_sql(oracle.dsn) as connection:
        return source_catalog(connection)


@pytest.fixture(scope="module")
def publications(catalog: SourceCatalog) -> Publications:
    """pgsluice's publications, made by the statements that made the server's."""
    return load_publications(PUBLICATIONS, catalog)
