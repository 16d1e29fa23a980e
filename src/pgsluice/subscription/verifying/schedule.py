"""Which tables are due for a verification (``verify`` of a subscription).

A table is due when its last verification is older than the interval, and soon after its copy. A
table that differed or could not be compared is not due again before the interval, so that what no
copy mends costs no more than the schedule.
"""

from __future__ import annotations

import time
from pathlib import Path

from pgsluice.config.model import VerifyConfig
from pgsluice.lsn import Lsn
from pgsluice.spool import SubscriptionRecord, TableRecord
from pgsluice.spool.notes import Verified, keep_verified, read_verified

_MOST_POLL_S = 30.0


class VerificationSchedule:
    """The schedule of one subscription.

    Args:
        spool_path: the folder of this machine.
    """

    def __init__(self, spool_path: Path, name: str) -> None:
        self._spool_path = spool_path
        self._name = name
        self._not_before: dict[int, float] = {}
        self._poll_at = 0.0

    def due(self, setting: VerifyConfig | None, record: SubscriptionRecord) -> list[int]:
        """The tables to verify now, the oldest verification first; empty between two polls."""
        now = time.monotonic()
        if setting is None or now < self._poll_at:
            return []
        self._poll_at = now + min(_MOST_POLL_S, setting.every / 10)
        verified = read_verified(self._spool_path, self._name, record.tables)
        before = time.time() - setting.every
        ages = {
            oid: verified[oid].at if oid in verified else 0.0
            for oid, table in record.tables.items()
            if _is_whole(table) and now >= self._not_before.get(oid, 0.0)
        }
        # A clock that was set back must not stop the schedule.
        due = [oid for oid, at in ages.items() if not before < at <= time.time()]
        return sorted(due, key=lambda oid: ages[oid])

    def put_off(self, oid: int, setting: VerifyConfig) -> None:
        """Do not verify a table again before the interval has passed."""
        self._not_before[oid] = time.monotonic() + setting.every

    def equal(self, oid: int, position: Lsn) -> None:
        """A table equals its source at a position; the caller holds the barrier."""
        keep_verified(self._spool_path, self._name, {oid: Verified(position, time.time())})


def _is_whole(table: TableRecord) -> bool:
    """Whether a target is meant to equal its source."""
    is_copied = table.is_active and table.copied.position > 0
    return is_copied and table.is_published and not table.incomplete
