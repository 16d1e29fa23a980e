"""Commits tables whose chunks are staged, and records the outcome."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
from pgsluice.errors import Failure, Remedy
from pgsluice.failpoints import failpoint
from pgsluice.rejects.copied import read_at
from pgsluice.rejects.folding import CommittedTable, Folding
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import SpoolReader, TableState
from pgsluice.subscription.copies.partitions import log_full_copy
from pgsluice.subscription.copies.pending import is_planned
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.lifecycle.look_events import LeavesFailed
from pgsluice.subscription.lifecycle.table_events import CopyFailed, CopyFinished, CopySuperseded
from pgsluice.subscription.lifecycle.transitions import TableEvent

logger = logging.getLogger(__name__)


def is_wanted(site: CopySite, work: CopyWork, snapshot: Snapshot) -> bool:
    """Whether a table still needs this very copy.

    It does not if the spool no longer has the changes after the snapshot.
    """
    table = site.tables.get(work.facts.oid)
    return (
        table is not None
        and is_planned(table, work)
        and min(table.applied_through, snapshot.position)
        >= SpoolReader(site.config.spool.place).start()
    )


def finish_copy(
    site: CopySite, task: CopyTables, copy: TableCopy, adopted: CopyResult | None = None
) -> CopyResult | Failure | None:
    """Commit a table whose chunks are staged, or record its failure.

    Args:
        adopted: the target was committed without a copy.

    Returns:
        None if the table no longer needs this copy.

    Raises:
        SinkError: the target as a whole cannot be used.
    """
    work = copy.work
    with site.tables.lock:
        if not is_wanted(site, work, task.snapshot):
            logger.info("%s has changed during its copy", work.title)
            site.counts.given_up([copy])
            site.pending.drop(work)
            return None
        result = adopted or copy.failure or _commit(task, copy)
        failpoint("copy.committed")
        if isinstance(result, CopyResult):
            had_rejects = bool((known := site.tables.get(work.facts.oid)) and known.rejects)
            result = attempt(partial(_fold_rejects, task, work, had_rejects), result)
        event = copy_event(
            result, work.copy_number, task.snapshot, of_leaves=work.replaces_partitions
        )
        table = site.tables.apply(work.facts.oid, event).table
        site.pending.resume([work.facts.oid])
        if isinstance(result, Failure) and result.remedy is Remedy.LATER:
            site.pending.wait_for_lock(work.facts.oid)
    if isinstance(result, Failure) and result.details is not None:
        logger.warning("%s: %s", work.title, result.details)
    if work.replaces_partitions and isinstance(result, Failure):
        log_full_copy(table, result)
    if table.state is TableState.COPIED:
        site.counts.committed(copy)
    else:
        site.counts.given_up([copy])
    site.tables.raise_failure()
    # One that failed need not wait for the end of its copy run to be tried again.
    site.pending.drop(work)
    return result


def _commit(task: CopyTables, copy: TableCopy) -> CopyResult | Failure:
    copy.is_offered = True
    staged = [part for _, part in sorted(copy.staged.items())]
    result = attempt(lambda parts: task.commit(copy.work, parts), staged)
    if isinstance(result, Failure) and result.remedy is Remedy.PARK:
        copy.is_offered = False  # refused, so that no commit was begun
    return result


def _fold_rejects(
    task: CopyTables, work: CopyWork, had_rejects: bool, result: CopyResult
) -> CopyResult:
    """Fold the rejects of a committed copy; if that fails, another copy does it."""
    if task.rejects is None or result.copy_number > work.copy_number:
        return result
    oid, is_whole = work.facts.oid, not work.replaces_partitions
    table = CommittedTable(
        work.namespace,
        work.name,
        work.copy_number,
        task.snapshot.position,
        read_at() if is_whole else None,
        had_rejects,
    )
    return replace(result, rejects=Folding(task.rejects).fold({oid: table}).get(oid))


def copy_event(
    result: CopyResult | Failure, copy_number: int, snapshot: Snapshot, *, of_leaves: bool = False
) -> TableEvent:
    """The event that follows from the result of a copy, or of one that replaces partitions."""
    if isinstance(result, Failure):
        return LeavesFailed(result) if of_leaves else CopyFailed(result)
    if result.copy_number > copy_number and not of_leaves:
        return CopySuperseded(result.copy_number)
    return CopyFinished(
        snapshot.position, snapshot.timeline, result.version, result.rows, result.rejects
    )
