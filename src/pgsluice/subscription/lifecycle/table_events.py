"""Events of copies and batches, and events that time causes, with their data.

Each class names its event in :data:`pgsluice.subscription.lifecycle.transitions.TRANSITIONS`, and
changes the data of a table's record. It changes neither the state nor data of other states, and has
no effects. Events of catalog refreshes and of targets' names are in
:mod:`pgsluice.subscription.lifecycle.look_events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from pgsluice.errors import Failure, Remedy
from pgsluice.hints import NOTHING_TO_DO, copy_again
from pgsluice.lsn import Lsn
from pgsluice.spool import SourceView, TableRecord, UnseenLeaf
from pgsluice.subscription.lifecycle.transitions import Attempts, Event

if TYPE_CHECKING:
    from pgsluice.subscription.base.work import TaskResult

_ARROW = "\n  → "
"""What is between a message and its hint."""
Rows = Mapping[int, tuple[str, ...]]
"""Partitions -> SQL conditions on the rows that they have or may have had."""
BATCH_ATTEMPTS = 5
"""A table is parked after this many consecutive failures of the same work."""
COPY_ATTEMPTS = 5
"""A table is parked after this many consecutive failures of its copy."""
LOOKS = 2
"""Copy a table that still fails after a catalog refresh, and again after each of so many
refreshes."""
LOOK_RETRY_S = 1.0
"""Retry delay for a table waiting for the rules of a new partition."""
WAIT_S = 5.0
"""Retry delay if the cause of a failure is outside the table."""


def with_gone(table: TableRecord, rows: Rows) -> TableRecord:
    """Add partitions to those whose rows are replaced in a table."""
    before = table.partitions
    bounds = chain(before.gone_bounds, *(rows[leaf] for leaf in sorted(rows)))
    copying = before._replace(
        gone=tuple(sorted({*before.gone, *rows})), gone_bounds=tuple(dict.fromkeys(bounds))
    )
    return replace(table, copying=copying, error=None)


def with_pending(table: TableRecord, **changed: Any) -> TableRecord:
    """Change fields of a table's pending work."""
    return replace(table, pending=replace(table.pending, **changed))


def to_verify(table: TableRecord, why: str) -> TableRecord:
    """Mark a table for verification, with one more reason."""
    marked = with_pending(table, verification=why)
    return replace(marked, verification_number=table.verification_number + 1)


class SimpleEvent:
    """An event without data, which also clears the error of the table."""

    event: ClassVar[Event]
    why: str = ""

    def kind(self, attempts: Attempts) -> Event:
        return self.event

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, error=None)


@dataclass(frozen=True)
class CopyNeeded(SimpleEvent):
    """The target lacks changes that the stream does not carry: the table is copied again."""

    event = Event.COPY_NEEDED
    why: str


@dataclass(frozen=True)
class CopyAbandoned(SimpleEvent):
    """A copy of partitions, or from the previous target, is impossible: the whole table is copied
    from the source."""

    event = Event.COPY_ABANDONED
    why: str = "rows of its partitions cannot be replaced alone"


@dataclass(frozen=True)
class CopyRequested(SimpleEvent):
    """A user requests a copy; it may replace a target of another source."""

    event = Event.COPY_DEMANDED
    why = "a user asked for it"

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        claim = replace(table.claim, any_source=True, repairs=False)
        return replace(table, claim=claim, error=None)


@dataclass(frozen=True)
class RepairNeeded(SimpleEvent):
    """A comparison found that the target differs: the next copy reads only the rows that differ."""

    event = Event.COPY_NEEDED
    why = "a verification found that its target differs"

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, claim=replace(table.claim, repairs=True), error=None)


@dataclass(frozen=True)
class CopyWaits(SimpleEvent):
    """The copy cannot continue now, with the reason as text for the user; None: it can."""

    event = Event.COPY_WAITS
    waits_for: str | None = None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, error=self.waits_for)


@dataclass(frozen=True)
class HoldReleased(CopyWaits):
    """The spool no longer keeps the table's changes; a copy of the table may have to wait."""

    event = Event.COPY_DEMANDED
    why = "the spool does not have its changes any more"


@dataclass(frozen=True)
class CopyBegun(SimpleEvent):
    """A snapshot is about to be taken; the spool keeps the changes after ``position``."""

    event = Event.COPY_BEGUN
    position: Lsn

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, applied_through=self.position, copying=None)


@dataclass(frozen=True)
class CopyPlanned(SimpleEvent):
    """The snapshot exists, and the copy's tasks are about to run; the table's properties are those
    in the snapshot (:class:`pgsluice.spool.SourceView`)."""

    event = Event.COPY_UPDATED
    fingerprint: str
    relations: tuple[int, ...] = ()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            copy_number=table.copy_number + 1,
            source=SourceView(self.fingerprint, self.relations),
            is_published=True,
            error=None,
        )


@dataclass(frozen=True)
class CopyFinished(SimpleEvent):
    """The copy is committed: the target has the rows of the source in a snapshot, all of them or
    those of the partitions that were to be replaced.

    Attributes:
        position, timeline: the snapshot's position and timeline.
        rows: the number of rows that were copied.
        rejects: how many rejects are open; None: as many as before.
    """

    event = Event.COPY_FINISHED
    position: Lsn
    timeline: int
    version: int
    rows: int
    rejects: int | None = None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        is_whole = not (table.partitions.load or table.partitions.gone_bounds)
        return replace(
            table,
            applied_through=self.position,
            committed=self.position,
            copied=replace(table.copied, position=self.position, timeline=self.timeline),
            version=self.version,
            rows=self.rows if is_whole else table.rows + self.rows,
            rejects=table.rejects if self.rejects is None else self.rejects,
            error=None,
        )


@dataclass(frozen=True)
class CopySuperseded(SimpleEvent):
    """The target has a later copy, from a record that was lost; the next attempt uses a higher copy
    number."""

    event = Event.COPY_UPDATED
    copy_number: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, copy_number=self.copy_number)


@dataclass(frozen=True)
class CopyFailed(SimpleEvent):
    """The copy failed; each attempt refreshes the catalog and takes a new snapshot."""

    failure: Failure

    def kind(self, attempts: Attempts) -> Event:
        match self.failure.remedy:
            case Remedy.WAIT:
                return Event.COPY_UPDATED
            case Remedy.LATER:
                return Event.COPY_ABANDONED
            case Remedy.STOP:
                return Event.COPY_STOPPED
            case Remedy.RETRY | Remedy.COPY | Remedy.LOOK if attempts.failures + 1 < COPY_ATTEMPTS:
                return Event.COPY_RETRIED
            case Remedy.PARK | Remedy.RETRY | Remedy.COPY | Remedy.LOOK:
                return Event.COPY_PARKED

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        if self.kind(attempts) is Event.COPY_PARKED:
            return parked(table, self.failure)
        return replace(table, error=self.failure.message)


@dataclass(frozen=True)
class BatchApplied(SimpleEvent):
    """The table's task applied a batch to its end.

    Attributes:
        next_due: when the next merge may run, in seconds since 1970; None: at any time.
        unseen: see :class:`pgsluice.spool.Pending`; None: unchanged.
    """

    event = Event.BATCH_APPLIED
    through: Lsn
    result: TaskResult
    next_due: float | None = None
    unseen: tuple[UnseenLeaf, ...] | None = None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        result = self.result
        if doubt := result.doubt or self._skipped(table):
            table = to_verify(table, doubt)
        pending = replace(
            table.pending,
            due=self.next_due,
            columns=None if result.is_altered else table.pending.columns,
            unseen_leaves=table.pending.unseen_leaves if self.unseen is None else self.unseen,
        )
        return replace(
            table,
            applied_through=max(table.applied_through, self.through),
            committed=max(table.committed, result.committed),
            version=result.version if result.version >= 0 else table.version,
            rows=table.rows + (0 if result.skipped else result.changes),
            rows_skipped=table.rows_skipped + result.rows_skipped,
            rejects=table.rejects if result.rejects is None else result.rejects,
            merge_s=result.merge_s,
            pending=pending,
            error=None,
        )

    def _skipped(self, table: TableRecord) -> str:
        """Why skipped changes show that a target without a key differs; empty: they do not.

        A change with its whole old row finds this row, unless the table was not copied, or lacks
        changes that are known.
        """
        skipped, is_whole = self.result.rows_skipped, table.copied.position and not table.incomplete
        if self.result.has_key or not skipped or not is_whole:
            return ""
        return f"table {table.title}: the target lacks rows that changes have updated or deleted"


@dataclass(frozen=True)
class BatchFailed:
    """The table's task failed; its position does not change, and the spool keeps its changes.

    Attributes:
        now: seconds since 1970.
        cause: the cause that a copy would remove.
        is_copied_for: the table was already copied for this cause, so another copy does not help.
        rows: the conditions on rows of the partitions in the failure: see
            :func:`pgsluice.schema_rules.known.rows_of_partitions`.
    """

    failure: Failure
    now: float
    cause: str = ""
    is_copied_for: bool = False
    rows: Rows | None = None

    @property
    def why(self) -> str:
        return self.failure.message

    def kind(self, attempts: Attempts) -> Event:
        asks_for_copy = self._asks_for_copy(attempts)
        if self.rows is not None and asks_for_copy:
            return Event.PARTITIONS_NEEDED
        if self.is_copied_for and asks_for_copy:
            return Event.BATCH_PARKED
        match self.failure.remedy:
            case Remedy.COPY:
                return Event.COPY_NEEDED
            case Remedy.WAIT | Remedy.LATER:
                return Event.UPDATED
            case Remedy.STOP:
                return Event.BATCH_STOPPED
            case Remedy.RETRY if attempts.failures + 1 < BATCH_ATTEMPTS:
                return Event.BATCH_RETRIED
            case Remedy.PARK | Remedy.RETRY:
                return Event.BATCH_PARKED
            case Remedy.LOOK:
                return Event.LOOKS_WERE_IN_VAIN if asks_for_copy else Event.BATCH_AWAITS_LOOK

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        failed = replace(table, error=self.failure.message)
        match self.kind(attempts):
            case Event.BATCH_AWAITS_LOOK:
                # Nobody has to hear of it: the next look most often finds the rules.
                return with_pending(table, due=self.now + LOOK_RETRY_S)
            case Event.BATCH_RETRIED:
                if self.failure.reached is not None:
                    failed = failed.set_back(Lsn(self.failure.reached))
                return with_pending(failed, due=self.now + 2 ** (attempts.failures + 1))
            case Event.UPDATED:
                return with_pending(failed, due=self.now + WAIT_S)
            case Event.PARTITIONS_NEEDED:
                return with_gone(table, self.rows or {})
            case Event.LOOKS_WERE_IN_VAIN:
                return replace(table, copied=replace(table.copied, cause=self.cause))
            case Event.COPY_NEEDED:
                return replace(failed, copied=replace(table.copied, cause=self.cause))
            case Event.BATCH_PARKED if self._asks_for_copy(attempts):
                return replace(table, error=self._copied_in_vain(table))
            case Event.BATCH_PARKED:
                return parked(table, self.failure)
        return failed

    def _asks_for_copy(self, attempts: Attempts) -> bool:
        remedy = self.failure.remedy
        return remedy is Remedy.COPY or (remedy is Remedy.LOOK and attempts.looks >= LOOKS)

    def _copied_in_vain(self, table: TableRecord) -> str:
        what, _, hint = self.failure.message.partition(_ARROW)
        what += ": pgsluice copied the table again, but the error remains"
        if hint and not hint.startswith(NOTHING_TO_DO):
            return f"{what}{_ARROW}{hint}"
        return (
            f"{what}\n"
            f"  → change the table or its publications, then copy it: {copy_again(table.title)}"
        )


def parked(table: TableRecord, failure: Failure) -> TableRecord:
    """Park a table for a failure. If the failure could have been temporary, the error also says how
    to resume."""
    message = failure.message
    what, _, hint = message.partition(_ARROW)
    if failure.remedy is not Remedy.PARK and (not hint or hint.startswith(NOTHING_TO_DO)):
        message = f"{what}\n  → solve the cause, then copy the table: {copy_again(table.title)}"
    return replace(table, error=message, parked_for=failure.reason or "")


@dataclass(frozen=True)
class CaughtUp(SimpleEvent):
    """The table has no pending changes up to ``position``."""

    event = Event.CAUGHT_UP
    position: Lsn

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return table.at(max(table.applied_through, self.position))


@dataclass(frozen=True)
class TimePassed(SimpleEvent):
    """A deferred table may be merged: its pause is over, or a consistent checkpoint is due.

    Attributes:
        now: seconds since 1970.
        is_cut_due: a consistent checkpoint is due, so all tables should reach one position. A table
            that failed still waits for its next attempt; otherwise it would soon be parked.
    """

    event = Event.UPDATED
    now: float
    is_cut_due: bool

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        due = table.pending.due
        if due is None or (self.now < due and (attempts.failures or not self.is_cut_due)):
            return table
        return with_pending(table, due=None)
