"""A subscription's publications of pgsluice's own: which rules act on what the server sends.

The statements are executed against the source's catalog at each look, so that they mean what
they would mean to the server now. Text that is refused at the start ends the run; later, the
rules that were in force go on and what is wrong is said: a table whose columns changed under
its filter parks by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psycopg

from pgsluice.catalog.source_tables import source_catalog
from pgsluice.config import PublicationsConfig, SubscriptionConfig
from pgsluice.publication import (
    Publisher,
    Statements,
    subscribed,
)


class OwnPublications:
    """What one subscription's publications say.

    Args:
        section: ``[publications]``.
        subscription: with names of publications.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, section: PublicationsConfig, subscription: SubscriptionConfig) -> None:
        # Read now and when it is asked for, not while somebody writes the file.
        self._statements = Statements.read(section)
        self._names = subscription.publications or ()

    def publishers(
        self, connection: psycopg.Connection[Any], sent: Collection[int]
    ) -> Mapping[int, Publisher]:
        """The rules for each relation that a change may be of; those without are not published.

        A partition that the server does not send any more may have changes in the spool, so all
        tables are asked about, and of partitioned ones those that are sent as themselves.

        Args:
            connection: to the source.
            sent: OIDs of what the server's publications send.

        Raises:
            ConfigError: a statement is refused, or the publications do not agree.
            TableError: the server sends a partitioned table as a whole, and a partition of it
                has rules of its own.
        """
        catalog = source_catalog(connection)
        own = subscribed(self._statements.publications(catalog), self._names)
        publishers = {}
        for oid, table in catalog.tables.items():
            if not table.is_publishable or (table.is_partitioned and oid not in sent):
                continue
            found = Publisher.of(own, table, catalog)
            if found is not None:
                publishers[oid] = found
        return publishers
