"""Copies that replace only the rows of some partitions; the target keeps all other rows.

New partitions are read one by one. For removed partitions, the rows within their bounds are read
through the table: they may now be in newer partitions or in a default partition.

Before that, the changes up to the snapshot's position are applied to the target (ADR 0034).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pgsluice.copy.job import CopyWork
from pgsluice.errors import Failure, Remedy, SourceUnreachable, SpoolFull
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.schema_rules.known import SourceFingerprint, rows_of_partitions
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.spool import TableRecord, TableState
from pgsluice.sql import any_of
from pgsluice.subscription.copies.pending import is_planned
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.lifecycle.look_events import LeavesFailed

logger = logging.getLogger(__name__)


def log_full_copy(table: TableRecord, failure: Failure) -> None:
    """Log that the whole table is copied if its partitions cannot be replaced alone."""
    if table.state is TableState.INITIALISE:
        logger.info("%s: the whole table is copied next: %s", table.title, failure.message)


def catch_up_to(
    site: CopySite,
    position: Lsn,
    copies: Sequence[TableCopy],
    in_snapshot: Mapping[int, ReplicatedTable],
    stop: threading.Event,
) -> list[TableCopy]:
    """Apply changes up to the snapshot's position to the targets whose partitions are replaced.

    Args:
        in_snapshot: the tables as the snapshot sees them.
        stop: it ends soon after this is set.

    Returns:
        the copies that continue, without those of tables for which this failed or was interrupted.
    """
    oids = [copy.work.facts.oid for copy in copies if copy.work.replaces_partitions]
    if not oids:
        return list(copies)
    failures: Mapping[int, Failure]
    try:
        has_come = site.received.come_to(position, stop.is_set)
    except SourceUnreachable as error:
        failures = dict.fromkeys(oids, Failure.of(error))
    except SpoolFull as error:
        # These tables hold what fills it. A copy needs only what follows its snapshot.
        failures = dict.fromkeys(oids, Failure(Remedy.COPY, str(error)))
    else:
        if not has_come or stop.is_set():
            return [copy for copy in copies if not copy.work.replaces_partitions]
        seen = {oid: in_snapshot[oid].fingerprint for oid in oids if oid in in_snapshot}
        unseen = Failure(Remedy.COPY, "the snapshot does not have the table as one that is sent")
        partitions = {oid: {*one.filenodes, *one.attachments} for oid, one in seen.items()}
        failed = site.batches.catch_up_held(partitions, position)
        failures = {
            **dict.fromkeys({*oids} - seen.keys(), unseen),
            **{oid: copied_if_gone(one, partitions[oid]) for oid, one in failed.items()},
        }
    tables = site.tables
    with tables.changing():
        for copy in copies:
            failure, known = failures.get(copy.work.facts.oid), tables.get(copy.work.facts.oid)
            if failure is not None and known is not None and is_planned(known, copy.work):
                rows = rows_of_partitions(known.source.fingerprint, failure.partitions)
                table = tables.apply(copy.work.facts.oid, LeavesFailed(failure, rows)).table
                log_full_copy(table, failure)
    return [copy for copy in copies if copy.work.facts.oid not in failures]


def copied_if_gone(failure: Failure, partitions: Collection[int]) -> Failure:
    """The failure, with the remedy to copy the table if it asks for a catalog refresh because of a
    partition that no refresh can find any more: else the table would wait for ever.

    Args:
        partitions: those in the copy's snapshot.
    """
    if failure.remedy is Remedy.LOOK and failure.partitions - {*partitions}:
        return replace(failure, remedy=Remedy.COPY, partitions=frozenset())
    return failure


def portions_of_partitions(
    work: CopyWork, portions: Sequence[Portion], known: str, in_snapshot: SourceFingerprint | None
) -> tuple[Portion, ...] | None:
    """The chunks to read of a table of which only some partitions are replaced.

    Args:
        portions: the chunks of the whole table.
        known: the fingerprint of the catalog refresh that found the partitions.
        in_snapshot: the fingerprint in the copy's snapshot.

    Returns:
        None if the whole table has to be copied.
    """
    before = SourceFingerprint.parse(known)
    if before is None or in_snapshot is None or _columns(before) != _columns(in_snapshot):
        return None
    came = _of_leaves(portions, work.leaves) if work.leaves else ()
    if came is None:
        return None
    if not work.gone_bounds:
        return came or ((Read(None, "false", 0),),)
    gone = any_of(work.gone_bounds)
    if work.is_gone is None or gone is None:
        return None
    others = tuple(tuple(_outside(read, gone) for read in portion) for portion in came)
    # Most often the source has nothing there.
    return (*others, (Read(None, gone, 0, is_of_gone=True),))


def _columns(fingerprint: SourceFingerprint) -> dict[int, str]:
    return {number: column.name for number, column in fingerprint.columns.items()}


def _of_leaves(portions: Sequence[Portion], leaves: Collection[int]) -> tuple[Portion, ...] | None:
    """The chunks that read these leaves, without those that are gone; None if unknown."""
    reads = [read for portion in portions for read in portion]
    if any(read.leaf is None for read in reads):
        return None
    of_leaves = (
        tuple(read for read in portion if read.leaf is not None and read.leaf.oid in leaves)
        for portion in portions
    )
    return tuple(portion for portion in of_leaves if portion)


def _outside(read: Read, condition: str) -> Read:
    """The rows of a chunk that do not match a condition: no two tasks may stage the same keys."""
    outside = f"({condition}) IS NOT TRUE"
    return replace(
        read, condition=f"({read.condition}) AND {outside}" if read.condition else outside
    )
