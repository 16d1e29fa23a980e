"""Turns the results of a batch's tasks into events of tables, after their rejects are folded.

Tables without changes also advance to the batch's end. Planning from the spool decides which ones
they are, not a missing result: a table may have been copied since the batch was planned.

Here it is also decided when each table is merged next, and when there is a *cut*, a consistent
checkpoint: a position that all replicating tables have reached. The cost of a copy-on-write merge
grows with the table's size, so expensive merges are spaced out. Besides the newest cut, about one
for each minute is kept for readers of older versions. Times are seconds since 1970 by a clock that
is never set back (:func:`steady_now`): otherwise setting the system's clock back by an hour would
delay merges by an hour.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pgsluice.config import SubscriptionConfig
from pgsluice.errors import Failure, PgsluiceError, Remedy
from pgsluice.events import BatchFinished, MetricsEvent, TableApplied
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.rejects.folding import CommittedTable, Folding
from pgsluice.rejects.table import RejectsPlace
from pgsluice.schema_rules.known import cause_of_copy, rows_of_partitions
from pgsluice.spool import Cut, SpoolReader, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.base.waits import WAITS, Waits
from pgsluice.subscription.base.work import Outcome, TableWork, TaskResult
from pgsluice.subscription.batches.lacking import LackingChanges
from pgsluice.subscription.batches.planning import plan_tables
from pgsluice.subscription.batches.unseen_leaves import unseen_leaves
from pgsluice.subscription.lifecycle.table_events import (
    BatchApplied,
    BatchFailed,
    CaughtUp,
    TimePassed,
)
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.lifecycle.transitions import TableEvent

logger = logging.getLogger(__name__)

_FRONTIER_POLL_S = 5.0
"""The pause between two readings of the received-through LSN in a store, each two requests. An idle
server may tell capture only after half a minute that there are no changes up to a copy."""
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


class BatchRejects:
    """Knows which tables may have files of rejects, so that a batch without them lists none."""

    def __init__(self) -> None:
        self._with_files: frozenset[int] | None = None
        """Tables with files of earlier batches; None: unknown, as after a kill."""

    def folded(
        self,
        place: RejectsPlace,
        tables: Mapping[int, TableRecord],
        outcomes: Sequence[Outcome],
    ) -> Sequence[Outcome]:
        """The outcomes with the numbers of open rejects.

        If the rejects table cannot be written, the outcomes of tables with rejects are failures:
        their next attempt finds the changes applied, and folds the same files.
        """
        done = {
            work.relation_oid: (work, result)
            for work, result in outcomes
            if isinstance(result, TaskResult) and work.relation_oid in tables
        }
        failed = frozenset(
            work.relation_oid for work, result in outcomes if isinstance(result, Failure)
        )
        with_files = self._with_files
        wanted = {
            oid: CommittedTable(
                work.namespace,
                work.name,
                work.copy_number,
                result.committed,
                is_counted=_was_ahead(work, result),
            )
            for oid, (work, result) in done.items()
            if with_files is None
            or oid in with_files
            or result.has_rejects
            or _was_ahead(work, result)  # its files may be there, or folded by that attempt
        }
        if not wanted:
            if with_files is not None:
                self._with_files = with_files | failed
            return outcomes
        folding = Folding(place)
        try:
            open_counts = folding.fold(wanted)
        except PgsluiceError as error:
            self._with_files = None
            failure = Failure.of(error)
            return [
                (work, failure if work.relation_oid in folding.begun else result)
                for work, result in outcomes
            ]
        self._with_files = (folding.left | failed) - wanted.keys()
        return [
            (work, replace(result, rejects=open_counts[work.relation_oid]))
            if isinstance(result, TaskResult) and work.relation_oid in open_counts
            else (work, result)
            for work, result in outcomes
        ]


def _was_ahead(work: TableWork, result: TaskResult) -> bool:
    """Whether the target was past the record: a run was killed in between."""
    return result.skipped and result.committed > work.committed


class BatchResults:
    """Records results of batches, and keeps the merge schedule and the consistent checkpoints."""

    def __init__(
        self,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        reader: SpoolReader,
        report: Callable[[MetricsEvent], None],
        waits: Waits = WAITS,
    ) -> None:
        self.subscription = subscription
        self._tables = tables
        self._reader = reader
        self._report = report
        self._waits = waits
        self._lacking = LackingChanges(reader)
        self._last_cut = time.monotonic()
        self._promote_at = 0.0
        """Do not look for copied tables that capture has passed before this time."""

    def record(self, end: Lsn, outcomes: Sequence[Outcome], started: float) -> None:
        """Record a batch durably, and report it.

        Args:
            started: when the batch started, by the monotonic clock.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        tables, now = self._tables, steady_now()
        failpoint("batch.before_record")
        with tables.changing():
            # A table may have been removed, or wait for a copy, since the batch was planned.
            known = tables.record.tables
            outcomes = [
                (work, result)
                for work, result in outcomes
                if (table := known.get(work.relation_oid)) is not None and table.is_active
            ]
            for work, result in outcomes:
                table = known[work.relation_oid]
                if isinstance(result, Failure) and result.details is not None:
                    logger.warning("%s: %s", table.title, result.details)
                tables.apply(work.relation_oid, self._event(table, work, result, now))
            tables.advance(end)
            self._advance_quiet_tables(tables.position, tables.record.tables)
            self._keep_cut(tables.position, now)
        self.end_deferrals()
        self._report_batch(outcomes, started)
        tables.raise_failure()

    def end_deferrals(self, now: float | None = None) -> None:
        """Allow merges again for tables whose pause is over, and for all tables when a checkpoint
        is due.

        Args:
            now: seconds since 1970; None: the current time.
        """
        is_cut_due = time.monotonic() - self._last_cut >= self.subscription.cut_interval_s
        passed = TimePassed(steady_now() if now is None else now, is_cut_due)
        deferred = [
            oid for oid, table in self._tables.unfinished.items() if table.pending.due is not None
        ]
        if deferred:
            with self._tables.changing():
                for oid in deferred:
                    self._tables.apply(oid, passed)

    def promote_copied(self) -> None:
        """Set copied tables without pending changes to state ``r``, even if the source is idle, and
        make a consistent checkpoint if no others have changes."""
        with self._tables.lock:
            copied = [
                (oid, table.applied_through)
                for oid, table in self._tables.unfinished.items()
                if table.state is TableState.COPIED
            ]
            if not copied or time.monotonic() < self._promote_at:
                return
            frontier = self._reader.frontier()
            received = [oid for oid, applied_through in copied if applied_through <= frontier]
            if not received:
                if self._reader.spool.place.is_remote:
                    self._promote_at = time.monotonic() + _FRONTIER_POLL_S
                return
            end = self._reader.position()  # between it and the frontier, there are no changes
            with self._tables.changing():
                self._advance_quiet_tables(end, received)
                active = [t for t in self._tables.record.tables.values() if t.is_active]
                reached = max([self._tables.position, *(table.committed for table in active)])
                if end <= self._tables.position and reached <= frontier:
                    self._keep_cut(reached, steady_now())

    def _keep_cut(self, position: Lsn, now: float) -> None:
        """Record a consistent checkpoint if all tables are at this position."""
        cut = next_cut(
            self._tables.record,
            position,
            now,
            self.subscription.cut_retention_s,
            self._waits.cuts_apart_s,
        )
        if cut is not None:
            self._last_cut = time.monotonic()
            self._tables.keep_cut(*cut)

    def _advance_quiet_tables(self, end: Lsn, oids: Iterable[int]) -> None:
        """Advance tables without changes to a position."""
        record = self._tables.record
        works = plan_tables(self._reader, record, end, with_deferred=True)
        behind = {work.relation_oid for work in works}
        quiet = (oid for oid in oids if record.tables[oid].is_active and oid not in behind)
        self._tables.apply_to_all(quiet, CaughtUp(end))

    def _event(
        self, table: TableRecord, work: TableWork, result: TaskResult | Failure, now: float
    ) -> TableEvent:
        if isinstance(result, Failure):
            if result.reached is not None:
                result = self._from_the_spool(result, Lsn(result.reached))
            cause = cause_of_copy(result.message, table.source.fingerprint)
            rows = rows_of_partitions(table.source.fingerprint, result.partitions)
            is_copied_for = cause == table.copied.cause
            return BatchFailed(result, now, cause, is_copied_for=is_copied_for, rows=rows)
        pause_s = merge_pause_s(result.merge_s, self.subscription.merge_interval_s)
        next_due = now + pause_s if pause_s > 0 else None
        unseen = unseen_leaves(self._reader, work.relation_oid, table, work.oids, work.through)
        return BatchApplied(work.through, result, next_due, unseen)

    def _from_the_spool(self, failure: Failure, reached: Lsn) -> Failure:
        """How to recover overwritten commits: apply their changes again, or copy the table."""
        is_there = self._reader.start() <= reached
        again = "pgsluice applies the changes since then again"
        copied = (
            "the spool does not have the changes since then any more: the table is copied again"
        )
        message = f"{failure.message}\n  → {again if is_there else copied}"
        logger.warning("%s: %s", self.subscription.name, message)
        remedy = Remedy.RETRY if is_there else Remedy.COPY
        return replace(failure, message=message, remedy=remedy)

    def _report_batch(self, outcomes: Sequence[Outcome], started: float) -> None:
        name, record = self.subscription.name, self._tables.record
        changes, now = 0, time.time()
        for work, result in outcomes:
            if isinstance(result, Failure):
                continue
            changes += result.changes
            table = record.tables[work.relation_oid]
            self._report(
                TableApplied(
                    name,
                    table.namespace,
                    table.name,
                    table.applied_through,
                    result.changes,
                    result.decode_s + result.merge_s,
                    result.rows_skipped,
                    result.rows_inserted,
                    result.rows_updated,
                    result.rows_deleted,
                    result.merge_s,
                    result.bytes_written,
                    max(0.0, now - work.since) if work.since and result.changes else None,
                )
            )
        self._report(
            BatchFinished(
                name,
                record.position,
                changes,
                time.monotonic() - started,
                len(outcomes),
                *self._lag(record),
            )
        )

    def _lag(self, record: SubscriptionRecord) -> tuple[int, float, frozenset[tuple[str, str]]]:
        """The lag in bytes and seconds from the oldest change that a target lacks to the last
        received one, and the tables that lack changes up to the position."""
        lacking = self._lacking.of(record)
        if not lacking:
            return 0, 0.0, frozenset()
        oldest = min(each.after for each in lacking.values())
        since = min(each.since for each in lacking.values())
        behind = (oid for oid, each in lacking.items() if each.after < record.position)
        names = frozenset(record.tables[oid].target_name for oid in behind)
        return self._reader.frontier() - oldest, max(0.0, time.time() - since), names
