"""Once a day, searches the targets for files of killed processes, and deletes them.

A process that is killed before its commit leaves files that no version of the table names. They are
no part of a table's maintenance, which comes after batches: most of them are those of killed
copies, and a copied table may never get a change. So a run goes through all tables once a day, one
table after each batch, or while it is idle. The search lists the table's folder, and adds no
version to the table.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from pgsluice.config import SubscriptionConfig
from pgsluice.errors import PgsluiceError, TargetUnreachable
from pgsluice.rejects.table import RejectsPlace
from pgsluice.sinks.lake.attempt import ORPHAN_AGE
from pgsluice.small_files import replace_json_if_possible
from pgsluice.subscription.base.options import target_writer
from pgsluice.subscription.lifecycle.tables import SubscriptionTables

logger = logging.getLogger(__name__)

_EVERY_S = 24 * 3600.0
_RETRY_S = 600.0
"""The pause after a target could not be reached, in seconds."""


class Leftovers:
    """The daily search of one subscription.

    Args:
        path: the file with the time of the last search, in seconds since 1970. If it is lost, the
            next search comes at once.
        tables: the subscription's; the caller holds their lock, so that no batch writes meanwhile.
    """

    def __init__(self, path: Path, tables: SubscriptionTables) -> None:
        self._path = path
        self._tables = tables
        self._last = _read(path)
        self._began = 0.0
        self._waiting: list[int] = []
        self._retry_at = 0.0

    def tend(
        self,
        subscription: SubscriptionConfig,
        spool_id: str,
        rejects: RejectsPlace | None,
        now: float | None = None,
    ) -> bool:
        """Search one table, if a search is due; the rejects table with the last one.

        Args:
            now: in seconds since 1970; None: the clock's time.

        Returns:
            whether another table waits.
        """
        tables, now = self._tables.record.tables, time.time() if now is None else now
        if not self._waiting:
            if 0 <= now - self._last < _EVERY_S:
                return False
            self._began = now
            self._waiting = [oid for oid, table in tables.items() if table.is_active]
        elif time.monotonic() < self._retry_at:
            return False
        oid = self._waiting[-1] if self._waiting else 0
        table, before = tables.get(oid), now - ORPHAN_AGE.total_seconds()
        try:
            # A copy may commit files that are older than a day.
            if table is not None and table.is_active:
                target_writer(subscription, spool_id, oid, table).delete_leftovers(before)
            if rejects is not None and len(self._waiting) <= 1:
                rejects.table().delete_leftovers(before)
        except TargetUnreachable:
            self._retry_at = time.monotonic() + _RETRY_S
            return False
        except (PgsluiceError, OSError) as error:
            logger.debug("%s: no search for leftovers: %s", oid, error)
        del self._waiting[-1:]
        if not self._waiting:
            self._last = self._began
            replace_json_if_possible(self._path, self._last)
        return bool(self._waiting)


def _read(path: Path) -> float:
    """When the last search began; 0 if nobody knows."""
    try:
        return float(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return 0.0
