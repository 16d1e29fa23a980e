"""Copies that replace rows of some partitions only, at targets that keep all other rows.

Before such rows are read, the target is brought to the snapshot's position (ADR 0034).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from pgsluice.copy import TableCopy
from pgsluice.errors import Failure, Remedy, SourceUnreachable, SpoolFull
from pgsluice.lsn import Lsn
from pgsluice.schema_rules import SourceFingerprint, rows_of_partitions
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.base.received import Received
from pgsluice.subscription.copies.plan import SourceTables
from pgsluice.subscription.copies.portions import portions_of_partitions
from pgsluice.subscription.copies.results import is_planned
from pgsluice.subscription.lifecycle.leaf_events import LeavesFailed
from pgsluice.subscription.lifecycle.table_events import CopyAbandoned
from pgsluice.subscription.lifecycle.tables import SubscriptionTables

logger = logging.getLogger(__name__)

CatchUp = Callable[[Mapping[int, Collection[int]], Lsn], Mapping[int, Failure]]
"""Applies to some tables what the spool has up to a position, and says of which that failed: only
changes of the table itself and of these partitions, which it has at the position."""


def plan_partitions(
    tables: SubscriptionTables, copies: Sequence[TableCopy], source: SourceTables
) -> list[TableCopy]:
    """Have copies of partitions read only these; where that cannot be, the table is copied.

    Returns:
        the copies that are made now.
    """
    planned = []
    for copy in copies:
        if copy.work.replaces_partitions:
            oid, record = copy.work.facts.oid, tables.get(copy.work.facts.oid)
            known = "" if record is None else record.source.fingerprint
            in_snapshot = source.fingerprints.get(oid)
            portions = portions_of_partitions(copy.work, copy.portions, known, in_snapshot)
            # Through the table, rows of foreign partitions would be read as well.
            has_foreign = bool(source.now[oid].foreign_partitions)
            if portions is None or (copy.work.gone_bounds and has_foreign):
                tables.apply(oid, CopyAbandoned())
                continue
            copy.portions = portions
        planned.append(copy)
    return planned


def leaves_failed(table: TableRecord, failure: Failure) -> LeavesFailed:
    """The event of a table in state ``d`` of which rows of partitions cannot be replaced now."""
    return LeavesFailed(failure, rows_of_partitions(table.source.fingerprint, failure.partitions))


def say_whole_is_next(table: TableRecord, failure: Failure) -> None:
    """Say it if a table whose partitions cannot be replaced alone is copied instead."""
    if table.state is TableState.INITIALISE:
        logger.info("%s: the whole table is copied next: %s", table.title, failure.message)


def bring_to(
    position: Lsn,
    tables: SubscriptionTables,
    copies: Sequence[TableCopy],
    in_snapshot: Mapping[int, SourceFingerprint],
    received: Received,
    catch_up: CatchUp,
    is_stopping: Callable[[], bool],
) -> list[TableCopy]:
    """Bring the targets that get partitions' rows to the snapshot's position.

    Args:
        in_snapshot: what the snapshot has of the tables.

    Returns:
        the copies that go on: not those of tables of which that failed, or was cut off.
    """
    oids = [copy.work.facts.oid for copy in copies if copy.work.replaces_partitions]
    if not oids:
        return list(copies)
    failures: Mapping[int, Failure]
    try:
        has_come = received.come_to(position, is_stopping)
    except SourceUnreachable as error:
        failures = dict.fromkeys(oids, Failure.of(error))
    except SpoolFull as error:
        # These tables hold what fills it. A copy needs only what follows its snapshot.
        failures = dict.fromkeys(oids, Failure(Remedy.COPY, str(error)))
    else:
        if not has_come or is_stopping():
            return [copy for copy in copies if not copy.work.replaces_partitions]
        seen = {oid: in_snapshot[oid] for oid in oids if oid in in_snapshot}
        unseen = Failure(Remedy.COPY, "the snapshot does not have the table as one that is sent")
        partitions = {oid: {*one.filenodes, *one.attachments} for oid, one in seen.items()}
        failures = {
            **dict.fromkeys({*oids} - seen.keys(), unseen),
            **catch_up(partitions, position),
        }
    with tables.changing():
        for copy in copies:
            failure, known = failures.get(copy.work.facts.oid), tables.get(copy.work.facts.oid)
            if failure is not None and known is not None and is_planned(known, copy.work):
                table = tables.apply(copy.work.facts.oid, leaves_failed(known, failure)).table
                say_whole_is_next(table, failure)
    return [copy for copy in copies if copy.work.facts.oid not in failures]
