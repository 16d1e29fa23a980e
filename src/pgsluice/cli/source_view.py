"""The input of ``describe`` and ``explain``: the source's tables, its publications, and our own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pgsluice.catalog.publications.publications import server_publications
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.config import Config
from pgsluice.config.values.table_names import table_named
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.errors import ConfigError
from pgsluice.publication import (
    OwnedPublication,
    Publications,
    find_table,
    load_configured,
    read_relation_name,
)
from pgsluice.replication import connect_sql, source_errors
from pgsluice.sql import SqlRefused

_KINDS = ("r", "p")
_SYSTEM = ("pg_catalog", "information_schema")
OWNER = "pgsluice"
"""The displayed owner of our own publications."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source at one time.

    Attributes:
        server: the server's publications.
        own: the publications that the configuration's statements create.
    """

    catalog: SourceCatalog
    server: tuple[OwnedPublication, ...]
    own: Publications
    server_version: int

    @property
    def all(self) -> list[OwnedPublication]:
        """The server's publications, then our own."""
        return [*self.server, *(OwnedPublication(publication, OWNER) for publication in self.own)]

    def table(self, name: str) -> SourceTable:
        """A table by its name; all commands parse it by the same rules.

        Raises:
            ConfigError: no table has the name; the hint has the nearest one.
        """
        tables = {
            (table.namespace, table.name): table
            for table in self.catalog.tables.values()
            if table.kind in _KINDS and table.namespace not in _SYSTEM
        }
        missing = f"there is no table {name} in the database {self.catalog.database}"
        try:
            return tables[table_named(name, tables, missing)]
        except ConfigError:
            with suppress(SqlRefused):  # by the role's search path, and all that SQL can write
                return find_table(read_relation_name(name), self.catalog)
            raise


def read_source(config: Config) -> SourceView:
    """Read everything from the source.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be queried.
        ConfigError: a statement of our own publications is refused.
    """
    timeout_s = config.source.connect_timeout_s
    with connect_sql(config.source.conninfo, timeout_s=timeout_s) as connection:
        with source_errors("reading the catalog"):
            catalog = source_catalog(
                connection, with_defaults=True, for_filters=config.publications is not None
            )
            server = tuple(server_publications(connection))
        version = connection.info.server_version
    return SourceView(catalog, server, load_configured(config.publications, catalog), version)
