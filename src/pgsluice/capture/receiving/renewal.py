"""Ends a connection whose server decides by publications of before, so that capture connects again.

Some servers decide by the catalog of an open transaction's start, and keep the decision for the
rest of the connection (:func:`.notices_publications`, ADR 0056). A new connection
decides right if it begins after these transactions have ended, and after capture has received them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pgsluice.catalog import Connection
from pgsluice.catalog.publications.publications import UnnoticedPublications, unnoticed_publications
from pgsluice.catalog.server import insert_lsn, slot_info
from pgsluice.catalog.visibility import current_snapshot
from pgsluice.lsn import Lsn

logger = logging.getLogger(__name__)

_CHANGED = object()
"""Stands for publications of before: no state equals it."""


class ConnectionRenewal:
    """Ends connections when publications have changed; their watcher asks at intervals.

    Args:
        durable: returns the LSN up to which capture has received everything.
    """

    def __init__(self, slot: str, durable: Callable[[], Lsn]) -> None:
        self._slot = slot
        self._durable = durable
        self._publications: object | None = None
        self._ended_from: int | None = None
        self._receive: Lsn | None = None

    def begin(self, publications: UnnoticedPublications | None) -> None:
        """A connection begins.

        Args:
            publications: their state before it; None: the server notices changes.
        """
        if publications is None:
            self._publications = None
        elif publications.versions != self._publications:
            # A change that the slot may still decode transactions of before is as one from now on.
            self._publications = _CHANGED if publications.are_recent else publications.versions

    def poll(self, connection: Connection) -> None:
        """End the connection if publications have changed, as soon as that is possible; raises
        psycopg.Error."""
        if self._publications is None:
            return
        found = unnoticed_publications(connection, self._slot)
        now = found and found.versions
        oldest, next_, _ = current_snapshot(connection)
        if now != self._publications:
            # All transactions that may have begun before this change.
            self._publications, self._ended_from, self._receive = now, next_, None
        if self._ended_from is not None and oldest >= self._ended_from:
            self._ended_from, self._receive = None, insert_lsn(connection)
        if self._receive is not None and self._durable() >= self._receive:
            self._receive = None
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        slot = slot_info(connection, self._slot)
        if slot is not None and slot.active_pid is not None:
            logger.info(
                "capture connects again: publications changed, and this version of PostgreSQL does "
                "not notice that in a connection if transactions were open"
            )
            connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", [slot.active_pid])
