"""Partitions that are filled first and attached then, while others write to their table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import errors
from tests.support.databases import Database

_PAUSE_S = 2.0


class LateLeaves:
    """Attaches partitions with rows to a table that is partitioned by range of ``id``.

    Args:
        first: the first id that no partition takes yet.
        width: how many ids each partition takes; every other one has a row.
        early: how many partitions are attached while the table is copied for the first time.
        late: how many are attached after that.

    Attributes:
        top: partitions take all ids below.
        count: how many were attached.
    """

    def __init__(
        self, shop: Database, table: str, first: int, width: int, *, early: int, late: int
    ) -> None:
        self.table = table
        self.top = first
        self.count = 0
        self._shop = shop
        self._width = width
        self._early, self._all = early, early + late

    def until(self, ended: threading.Event, is_copied: Callable[[], bool]) -> None:
        """Attach one after the other, until the event.

        Args:
            is_copied: whether the table's first copy has ended.
        """
        while self.count < self._all and not ended.wait(_PAUSE_S):
            if self.count < self._early or is_copied():
                # The server may crash, and sessions that write may be in the way.
                with suppress(psycopg.OperationalError, errors.DeadlockDetected):
                    self.attach()

    def attach(self) -> None:
        """Attach the next one, or find that it was attached before the server crashed."""
        leaf, top = f"{self.table}_{self.top}", self.top + self._width
        with self._shop.connect() as connection:
            if not _is_attached(connection, leaf):
                with connection.transaction():
                    connection.execute(f"DROP TABLE IF EXISTS {leaf}".encode())
                    connection.execute(
                        f"CREATE TABLE {leaf} (LIKE {self.table} INCLUDING ALL)".encode()
                    )
                    connection.execute(
                        f"INSERT INTO {leaf} (id, n, v) SELECT i, 0, 'late ' || i"
                        f" FROM generate_series({self.top}, {top - 1}, 2) i".encode()
                    )
                connection.execute(
                    f"ALTER TABLE {self.table} ATTACH PARTITION {leaf}"
                    f" FOR VALUES FROM ({self.top}) TO ({top})".encode()
                )
        self.top, self.count = top, self.count + 1


def _is_attached(connection: psycopg.Connection[object], leaf: str) -> bool:
    query = "SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(%s)"
    return connection.execute(query, [leaf]).fetchone() is not None
