"""What ``describe`` and ``explain`` look at: the source's tables, its publications, our own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.catalog.source_tables import SourceCatalog, SourceTable, source_catalog
from pgsluice.config import Config
from pgsluice.publication import (
    OwnedPublication,
    Publication,
    Publications,
    find_table,
    load_configured,
    read_relation_name,
    server_publications,
)
from pgsluice.replication import connect_sql, source_errors

OWNER = "pgsluice"
"""Who owns publications of our own."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """One look at the source.

    Attributes:
        server: the server's publications.
        own: those that the configuration's statements make.
    """

    catalog: SourceCatalog
    server: tuple[OwnedPublication, ...]
    own: Publications
    server_version: int

    @property
    def all(self) -> list[OwnedPublication]:
        """The server's, then our own."""
        return [*self.server, *(OwnedPublication(one, OWNER) for one in self.own)]

    def server_named(self, names: Iterable[str]) -> list[Publication]:
        """Those of the server's that are there."""
        wanted = frozenset(names)
        return [one.publication for one in self.server if one.publication.name in wanted]

    def table(self, name: str) -> SourceTable:
        """A table by its name as SQL writes it.

        Raises:
            SqlRefused: it is no name, or no table has it.
        """
        return find_table(read_relation_name(name), self.catalog)


def look(config: Config) -> SourceView:
    """Ask the source.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be asked.
        ConfigError: our own publications' statements are refused.
    """
    timeout_s = config.source.connect_timeout_s
    with connect_sql(config.source.dsn, timeout_s=timeout_s) as connection:
        with source_errors("reading the catalog"):
            catalog = source_catalog(connection)
            server = tuple(server_publications(connection))
        version = connection.info.server_version
    return SourceView(catalog, server, load_configured(config.publications, catalog), version)
