"""Checks of commits that another program may have overwritten.

In S3, Delta's jar for Spark checks whether a version's file exists, and then writes it. It silently
overwrites a commit that pgsluice makes in between. The table's next batch notices this, because the
target is behind the record. If there is no next batch, the target is checked once, some time after
its last commit. Until then, the spool keeps the changes.

The promise: no change is lost, even if other writers ignore the conditional writes of the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pgsluice.lsn import Lsn
from pgsluice.spool import SubscriptionRecord


class Confirmations:
    """The tables whose newest commits need a check, and when.

    Args:
        after_s: how long after a commit to check it, in seconds; 0: never.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._since: dict[int, float] | None = None

    def committed(self, oids: Iterable[int]) -> None:
        """Note that these tables have new commits."""
        if self._after_s and self._since is not None:
            self._since.update(dict.fromkeys(oids, time.monotonic()))

    def due(self, record: SubscriptionRecord) -> list[int]:
        """The replicating tables whose newest commits are due for a check; each is returned once.

        A new run does not know when the previous one committed, so all tables are due once.
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
