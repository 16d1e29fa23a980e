"""When each table is merged next, and the consistent checkpoints that readers may rely on.

The cost of a copy-on-write merge grows with the table's size, so expensive merges are spaced out. A
*cut* (consistent checkpoint) is a position that all replicating tables have reached. Besides the
newest one, about one for each minute is kept for readers of older versions.

Times are seconds since 1970 by a clock that is never set back (:func:`steady_now`): otherwise
setting the system's clock back by an hour would delay merges by an hour.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from pgsluice.lsn import Lsn
from pgsluice.spool import Cut, SubscriptionRecord

HEAVY_MERGE_S = 0.5
"""The pause after an expensive merge, in durations of the merge, so that merging takes at most a
fifth of the time."""
SPACING = 4

_CLOCK_AT_ZERO = time.time() - time.monotonic()


def steady_now() -> float:
    """Seconds since 1970: the system's clock at this process's start, advanced by the monotonic
    clock."""
    return _CLOCK_AT_ZERO + time.monotonic()


def merge_pause_s(merge_s: float, apply_interval_s: float) -> float:
    """The pause before a table's next merge, after a merge that took ``merge_s``; 0: no pause."""
    return max(apply_interval_s, SPACING * merge_s if merge_s > HEAVY_MERGE_S else 0.0)


def next_cut(
    record: SubscriptionRecord, position: Lsn, now: float, retention_s: float, apart_s: float
) -> tuple[Cut, tuple[Cut, ...]] | None:
    """The consistent checkpoint at a position, with the older ones to keep; None: the tables are
    not all at this position.

    Args:
        position: the record's, or a later one up to which the server sends no more changes.
        now: seconds since 1970.
        retention_s: how long to keep older checkpoints.
        apart_s: the least time between two of the older checkpoints.
    """
    active = {oid: table for oid, table in record.tables.items() if table.is_active}
    if any(
        # Behind, or copied at a point that the others have not reached.
        not table.committed <= position or table.applied_through < record.position
        for table in active.values()
    ):
        return None
    cut = Cut(
        lsn=position,
        made_at=now,
        versions={oid: table.version for oid, table in active.items() if table.version >= 0},
    )
    older = [old for old in record.cuts if now - old.made_at <= retention_s]
    # An earlier run may have made it by a clock that was ahead.
    if not older or not 0 <= now - older[-1].made_at < apart_s:
        older.append(cut)
    return cut, tuple(older)


def kept_versions(
    record: SubscriptionRecord, barrier_versions: Mapping[int, int], oids: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """The target versions of these tables that readers of consistent checkpoints, or at a barrier,
    need."""
    cuts = [cut.versions for cut in (*record.cuts, record.cut) if cut is not None]
    return {
        oid: tuple(sorted({cut[oid] for cut in (barrier_versions, *cuts) if oid in cut}))
        for oid in oids
    }
