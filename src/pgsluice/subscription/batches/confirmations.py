"""Commits that are looked at once more, because another program may have overwritten them.

Delta's jar for Spark looks whether a version's name is free in S3, and then writes it: a commit of
ours in between is lost without a word. The next batch of the table notices that, since its target
is behind the record. A table without a next batch is asked once, some time after its last commit.
The spool keeps the changes so long.

Its promise: nothing is lost, also where others write to a lake by rules that its store ignores.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pgsluice.lsn import Lsn
from pgsluice.spool import SubscriptionRecord


class Confirmations:
    """Which tables' newest commits are to be looked at, and when.

    Args:
        after_s: how long after a commit, in seconds; 0: never.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._since: dict[int, float] | None = None

    def committed(self, oids: Iterable[int]) -> None:
        """These tables have new commits."""
        if self._after_s and self._since is not None:
            self._since.update(dict.fromkeys(oids, time.monotonic()))

    def due(self, record: SubscriptionRecord) -> list[int]:
        """The active tables whose newest commits are to be looked at now; each is named once.

        A new run does not know when the last one committed: all tables are due once.
        """
        if not self._after_s:
            return []
        now = time.monotonic()
        if self._since is None:
            self._since = dict.fromkeys(record.tables, now)
        due = [oid for oid, since in self._since.items() if now - since >= self._after_s]
        for oid in due:
            del self._since[oid]
        known = ((oid, record.tables.get(oid)) for oid in due)
        return [
            oid
            for oid, table in known
            if table is not None and table.is_active and table.committed > Lsn(0)
        ]
