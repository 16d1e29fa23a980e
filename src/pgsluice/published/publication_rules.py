"""A subscription's own publications: which rules apply to what the server sends.

Each catalog refresh executes the statements against the source's catalog, so that they mean what
they would mean on the server now. Statements that are refused at the start end the run. Later, the
earlier rules stay in force and the error is reported; a table whose filter no longer matches its
columns is parked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pgsluice.catalog import Connection
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.config import Config, PublicationsConfig, SubscriptionConfig
from pgsluice.publication import Publisher, Statements, subscribed


class PublicationRules:
    """The rules of one subscription's own publications.

    Args:
        section: the section ``[publications]``.
        subscription: a subscription that names publications.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, section: PublicationsConfig, subscription: SubscriptionConfig) -> None:
        # The file is read now and on request, not while somebody writes it.
        self._chosen = Statements.read(section), subscription.publications or ()
        self._in_force: dict[int, Mapping[int, Publisher]] = {}

    @classmethod
    def of(cls, config: Config, subscription: SubscriptionConfig) -> PublicationRules | None:
        """The rules of a subscription; None: it applies everything that the server sends.

        Raises:
            ConfigError: the file cannot be read.
        """
        if config.publications is None or subscription.publications is None:
            return None
        return cls(config.publications, subscription)

    def reread(self, config: Config, name: str) -> Callable[[], None]:
        """Read the subscription's statements from another configuration.

        The rules in force stay until the next catalog refresh. A subscription with publications
        cannot lose all of them before the next start: otherwise rows would pass that should not.

        Returns:
            a function that puts them in force.

        Raises:
            ConfigError: the file cannot be read.
        """
        chosen, section = self._chosen, config.publications
        for one in config.subscriptions:
            if one.name == name and section is not None and one.publications is not None:
                chosen = Statements.read(section), one.publications

        def take() -> None:
            self._chosen = chosen

        return take

    def put_in_force(self, oid: int, rules: Mapping[int, Publisher]) -> None:
        """Use these rules, by the relation that the server sends, for a table's changes from now
        on: those of a catalog refresh when the table is replicating, and of its copy."""
        self._in_force[oid] = rules

    def of_tables(self, oids: Collection[int]) -> dict[int, Mapping[int, Publisher]]:
        """The publications' rules in force, by OID, for those of the tables that have some."""
        return {oid: self._in_force[oid] for oid in oids if oid in self._in_force}

    def publishers(self, connection: Connection, sent: Collection[int]) -> Mapping[int, Publisher]:
        """The rules for each relation that may have changes; relations without rules are not
        published.

        The spool may have changes of a partition that the server no longer sends. So all plain
        tables and partitions are included, and the partitioned tables that are sent under their own
        names.

        Args:
            sent: OIDs of the relations that the server's publications send.

        Raises:
            ConfigError: a statement is refused, or publications contradict each other.
            TableError: the server sends a partitioned table as a whole, and a partition of it
                has rules of its own.
        """
        catalog = source_catalog(connection)
        statements, names = self._chosen
        publications = subscribed(statements.publications(catalog), names)
        publishers = {}
        for oid, table in catalog.tables.items():
            if not table.is_publishable or (table.is_partitioned and oid not in sent):
                continue
            publisher = Publisher.of(publications, table, catalog)
            if publisher is not None:
                publishers[oid] = publisher
        return publishers
