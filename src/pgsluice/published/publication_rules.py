"""A subscription's publications of pgsluice: which rules act on what the server sends.

The statements are executed against the source's catalog at each look, so that they mean what
they would mean to the server now. Text that is refused at the start ends the run; later, the
rules that were in force stay in force and the error is reported: a table whose columns changed
under its filter parks by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import psycopg

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.config import Config, PublicationsConfig, SubscriptionConfig
from pgsluice.publication import Publisher, Statements, subscribed


class PublicationRules:
    """The rules of one subscription's publications.

    Args:
        section: ``[publications]``.
        subscription: with names of publications.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, section: PublicationsConfig, subscription: SubscriptionConfig) -> None:
        # The file is read now and on request, not while somebody writes it.
        self._chosen = Statements.read(section), subscription.publications or ()
        self._in_force: dict[int, Mapping[int, Publisher]] = {}

    @classmethod
    def of(cls, config: Config, subscription: SubscriptionConfig) -> PublicationRules | None:
        """The rules of a subscription; None: it takes everything that the server sends.

        Raises:
            ConfigError: the file cannot be read.
        """
        if config.publications is None or subscription.publications is None:
            return None
        return cls(config.publications, subscription)

    def reread(self, config: Config, name: str) -> Callable[[], None]:
        """Read the subscription's statements from another configuration.

        Rules in force stay until the next look. A subscription that has publications keeps some
        until the next start: without them, rows would pass that should not.

        Returns:
            what takes them over.

        Raises:
            ConfigError: the file cannot be read.
        """
        chosen = self._chosen
        for subscription in config.subscriptions:
            if subscription.name != name:
                continue
            if config.publications is not None and subscription.publications is not None:
                chosen = Statements.read(config.publications), subscription.publications

        def take() -> None:
            self._chosen = chosen

        return take

    def put_in_force(self, oid: int, rules: Mapping[int, Publisher]) -> None:
        """Have tasks apply a table's changes by these rules from now on.

        A table gets the rules of a catalog refresh when it is active, and those of its copy.

        Args:
            rules: by the relation that the server sends.
        """
        self._in_force[oid] = rules

    def of_tables(self, oids: Collection[int]) -> dict[int, Mapping[int, Publisher]]:
        """The rules in force of some tables."""
        return {oid: self._in_force[oid] for oid in oids if oid in self._in_force}

    def publishers(
        self, connection: psycopg.Connection[Any], sent: Collection[int]
    ) -> Mapping[int, Publisher]:
        """The rules for each relation that a change may be of; those without are not published.

        A partition that the server does not send any more may have changes in the spool, so all
        tables are included, and of partitioned ones those that are sent as themselves.

        Args:
            sent: OIDs of what the server's publications send.

        Raises:
            ConfigError: a statement is refused, or the publications do not agree.
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
