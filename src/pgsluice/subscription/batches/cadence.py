"""When a table is merged next, and which positions readers across tables may rely on.

A copy-on-write merge costs what the table weighs, so expensive merges are spaced out; cheap
ones follow each other. A *cut* is a position at which all active tables stand. Besides the
newest cut, about one a minute is kept for readers of older ones.

Times are seconds since 1970 by a clock that nobody sets (:func:`steady_now`): what waits must not
wait an hour longer because the system's clock is set back by an hour.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from pgsluice.spool import Cut, SubscriptionRecord

HEAVY_MERGE_S = 0.5
"""Merges that take longer are spaced out, so that merging takes at most a fifth of the time."""
SPACING = 4
CUTS_APART_S = 60


_CLOCK_AT_ZERO = time.time() - time.monotonic()


def steady_now() -> float:
    """Seconds since 1970: the system's clock as it was when this process began, gone on."""
    return _CLOCK_AT_ZERO + time.monotonic()


def merge_pause_s(merge_s: float, apply_interval_s: float) -> float:
    """How long a table's next merge waits after one that took ``merge_s``; 0: not at all."""
    return max(apply_interval_s, SPACING * merge_s if merge_s > HEAVY_MERGE_S else 0.0)


def next_cut(
    record: SubscriptionRecord, now: float, retention_s: float
) -> tuple[Cut, tuple[Cut, ...]] | None:
    """The cut at the record's position and the older ones to keep; None: there is no cut there.

    Args:
        record: the subscription's.
        now: seconds since 1970.
        retention_s: how long older cuts stay.
    """
    active = {oid: table for oid, table in record.tables.items() if table.is_active}
    if any(
        # Behind, or copied at a point that the others have not reached.
        not table.committed <= record.position <= table.applied_through
        for table in active.values()
    ):
        return None
    cut = Cut(
        lsn=record.position,
        made_at=now,
        versions={oid: table.version for oid, table in active.items() if table.version >= 0},
    )
    older = [old for old in record.cuts if now - old.made_at <= retention_s]
    # An earlier run may have made it by a clock that was ahead.
    if not older or not 0 <= now - older[-1].made_at < CUTS_APART_S:
        older.append(cut)
    return cut, tuple(older)


def kept_versions(
    record: SubscriptionRecord, barrier_versions: Mapping[int, int], oids: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """Target versions that readers of cuts or at a barrier need, of these tables."""
    cuts = [cut.versions for cut in (*record.cuts, record.cut) if cut is not None]
    return {
        oid: tuple(sorted({cut[oid] for cut in (barrier_versions, *cuts) if oid in cut}))
        for oid in oids
    }
