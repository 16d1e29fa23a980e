"""Events with facts: of copies, of batches, and of time.

Each class says which event of :data:`pgsluice.subscription.lifecycle.transitions.TRANSITIONS` it
is, and which fields of a table's record its facts change. The state is not theirs to change. Events
of looks are in :mod:`pgsluice.subscription.lifecycle.look_events`, and those that concern a
target's name in :mod:`pgsluice.subscription.lifecycle.name_events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from pgsluice.errors import Failure, Remedy
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.spool import TableRecord, UnseenLeaf
from pgsluice.subscription.lifecycle.transitions import Attempts, Event

if TYPE_CHECKING:
    from pgsluice.subscription.base.work import TaskResult

Rows = Mapping[int, tuple[str, ...]]
"""Partitions, and which rows of their table they may have had or have, as SQL conditions."""
_NOWHERE = Lsn(0)
BATCH_ATTEMPTS = 5
"""A table is parked after this many consecutive failures of the same work."""
COPY_ATTEMPTS = 5
"""A table is parked after this many consecutive failures of its copy."""
LOOKS = 2
"""Copy the table if it fails for what a look should find, and again after each of so many looks."""
LOOK_RETRY_S = 1.0
"""Retry delay for a table waiting for the rules of a new partition."""
WAIT_S = 5.0
"""Retry delay where the cause of a failure lies outside of the table."""


def with_gone(table: TableRecord, rows: Rows) -> TableRecord:
    """A table of which the rows of more partitions are replaced."""
    bounds = chain(table.gone_bounds, *(rows[leaf] for leaf in sorted(rows)))
    return replace(
        table,
        gone_bounds=tuple(dict.fromkeys(bounds)),
        gone_leaves=tuple(sorted({*table.gone_leaves, *rows})),
        error=None,
        deferred=False,
    )


class SimpleEvent:
    """An event that is always the same one, and clears what an error left."""

    event: ClassVar[Event]

    def kind(self, attempts: Attempts) -> Event:
        return self.event

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, error=None, deferred=False)


@dataclass(frozen=True)
class CopyRequested(SimpleEvent):
    """A user wants the table copied; the copy may replace a target of another source."""

    event = Event.COPY_REQUESTED

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, may_replace_foreign_target=True, error=None, deferred=False)


@dataclass(frozen=True)
class HoldReleased(SimpleEvent):
    """The spool does not hold the table's changes any more.

    Attributes:
        why: what a table waits for that was being copied, for people.
    """

    event = Event.HOLD_RELEASED
    why: str | None = None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(super().change(table, attempts), error=self.why)


@dataclass(frozen=True)
class CopyWaits(SimpleEvent):
    """The copy cannot go on now.

    Attributes:
        why: for people; None: nothing is in its way any more.
    """

    event = Event.COPY_WAITS
    why: str | None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, error=self.why)


@dataclass(frozen=True)
class CopyBegun(SimpleEvent):
    """A snapshot is about to be taken; the spool keeps what follows ``position``."""

    event = Event.COPY_BEGUN
    position: Lsn

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            applied_through=self.position,
            old_target=None,
            load_leaves=(),
            gone_bounds=(),
            gone_leaves=(),
        )


@dataclass(frozen=True)
class CopyPlanned(SimpleEvent):
    """The snapshot is there, and the copy's task is about to run.

    Attributes:
        fingerprint, relations: as of the snapshot; see :class:`LookedSame`.
    """

    event = Event.COPY_PLANNED
    fingerprint: str
    relations: tuple[int, ...] = ()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            copy_number=table.copy_number + 1,
            fingerprint=self.fingerprint,
            relations=self.relations,
            looked_at=_NOWHERE,
            looked_on=0,
            is_published=True,
            to_verify="",
            alter_after=_NOWHERE,
            alter_facts="",
            unseen_leaves=(),
            error=None,
        )


@dataclass(frozen=True)
class CommittedUnderSnapshot(SimpleEvent):
    """The target has what the source has under a snapshot.

    Attributes:
        position, timeline: the snapshot's.
        version: the target's.
        rows: how many were read.
    """

    position: Lsn
    timeline: int
    version: int
    rows: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            super().change(table, attempts),
            applied_through=self.position,
            committed=self.position,
            copied_at=self.position,
            copied_on=self.timeline,
            version=self.version,
            rows=table.rows + self.rows,
        )


@dataclass(frozen=True)
class CopyFinished(CommittedUnderSnapshot):
    """The copy is committed at the target."""

    event = Event.COPY_FINISHED

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            super().change(table, attempts),
            rows=self.rows,
            may_replace_foreign_target=False,
            predecessor_oids=(),
        )


@dataclass(frozen=True)
class CopySuperseded(SimpleEvent):
    """The target has a later copy, of a record that was lost; the next attempt begins past it."""

    event = Event.COPY_SUPERSEDED
    copy_number: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, copy_number=self.copy_number)


@dataclass(frozen=True)
class CopyFailed:
    """The copy's task failed; each attempt looks at the catalog and takes a snapshot anew."""

    failure: Failure

    def kind(self, attempts: Attempts) -> Event:
        match self.failure.remedy:
            case Remedy.PARK:
                return Event.COPY_FAILED_PARK
            case Remedy.WAIT:
                return Event.COPY_FAILED_WAIT
            case Remedy.LATER:
                return Event.COPY_FAILED_LATER
            case Remedy.STOP:
                return Event.COPY_FAILED_STOP
            case _ if attempts.failures + 1 >= COPY_ATTEMPTS:
                return Event.COPY_FAILED_LAST
            case Remedy.RETRY | Remedy.COPY | Remedy.LOOK:
                return Event.COPY_FAILED_RETRY

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        message = self.failure.message
        if self.kind(attempts) is Event.COPY_FAILED_LAST:
            message = _with_way_out(message, table)
        return replace(table, error=message, parked_for=self.failure.reason or "")


@dataclass(frozen=True)
class BatchApplied(SimpleEvent):
    """The table's task brought it to the end of a batch.

    Attributes:
        next_due: until when the next merge waits (seconds since 1970); None: it need not.
        unseen: see :class:`pgsluice.spool.TableRecord`; None: as before.
    """

    event = Event.BATCH_APPLIED
    through: Lsn
    result: TaskResult
    next_due: float | None = None
    unseen: tuple[UnseenLeaf, ...] | None = None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        result = self.result
        if result.is_altered:
            table = replace(table, alter_after=_NOWHERE, alter_facts="")
        if result.doubt:
            table = replace(
                table,
                to_verify=result.doubt,
                verification_number=table.verification_number + 1,
            )
        if self.unseen is not None and self.unseen != table.unseen_leaves:
            table = replace(table, unseen_leaves=self.unseen)
        return replace(
            table,
            applied_through=max(table.applied_through, self.through),
            committed=max(table.committed, result.committed),
            version=result.version if result.version >= 0 else table.version,
            rows=table.rows + (0 if result.skipped else result.changes),
            rows_skipped=table.rows_skipped + result.rows_skipped,
            merge_s=result.merge_s,
            deferred=self.next_due is not None,
            next_due=table.next_due if self.next_due is None else self.next_due,
            error=None,
        )


@dataclass(frozen=True)
class BatchFailed:
    """The table's task failed; its position stays, and the spool keeps its changes.

    Attributes:
        now: seconds since 1970.
        cause: what a copy would be made for.
        is_copied_for: the table was copied for this cause before: a copy does not help.
        rows: of the partitions that the failure names: see
            :func:`pgsluice.schema_rules.rows_of_partitions`.
    """

    failure: Failure
    now: float
    cause: str = ""
    is_copied_for: bool = False
    rows: Rows | None = None

    def kind(self, attempts: Attempts) -> Event:
        if self.rows is not None and self._asks_for_copy(attempts):
            return Event.BATCH_FAILED_LEAVES
        if self.is_copied_for and self._asks_for_copy(attempts):
            return Event.BATCH_FAILED_PARK
        match self.failure.remedy:
            case Remedy.PARK:
                return Event.BATCH_FAILED_PARK
            case Remedy.COPY:
                return Event.BATCH_FAILED_COPY
            case Remedy.WAIT | Remedy.LATER:
                return Event.BATCH_FAILED_WAIT
            case Remedy.STOP:
                return Event.BATCH_FAILED_STOP
            case Remedy.RETRY if attempts.failures + 1 >= BATCH_ATTEMPTS:
                return Event.BATCH_FAILED_LAST
            case Remedy.RETRY:
                return Event.BATCH_FAILED_RETRY
            case Remedy.LOOK if attempts.looks >= LOOKS:
                return Event.BATCH_FAILED_LAST_LOOK
            case Remedy.LOOK:
                return Event.BATCH_FAILED_LOOK

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        failed = replace(table, error=self.failure.message)
        match self.kind(attempts):
            case Event.BATCH_FAILED_LOOK:
                # Nobody has to hear of it: the next look most often finds the rules.
                return replace(table, deferred=True, next_due=self.now + LOOK_RETRY_S)
            case Event.BATCH_FAILED_RETRY:
                pause_s = float(2 ** (attempts.failures + 1))
                return replace(failed, deferred=True, next_due=self.now + pause_s)
            case Event.BATCH_FAILED_WAIT:
                return replace(failed, deferred=True, next_due=self.now + WAIT_S)
            case Event.BATCH_FAILED_STOP:
                return failed
            case Event.BATCH_FAILED_LEAVES:
                return replace(with_gone(table, self.rows or {}), copy_reason=self.failure.message)
            case Event.BATCH_FAILED_LAST_LOOK:
                why = self.failure.message
                return replace(table, deferred=False, copied_for=self.cause, copy_reason=why)
            case Event.BATCH_FAILED_COPY:
                why = self.failure.message
                return replace(failed, deferred=False, copied_for=self.cause, copy_reason=why)
            case Event.BATCH_FAILED_LAST:
                return replace(
                    failed, error=_with_way_out(self.failure.message, table), deferred=False
                )
            case Event.BATCH_FAILED_PARK if self.failure.remedy is not Remedy.PARK:
                return replace(failed, error=self._copied_in_vain(table), deferred=False)
            case _:
                return replace(failed, deferred=False, parked_for=self.failure.reason or "")

    def _asks_for_copy(self, attempts: Attempts) -> bool:
        remedy = self.failure.remedy
        is_last_look = remedy is Remedy.LOOK and attempts.looks >= LOOKS
        return remedy is Remedy.COPY or is_last_look

    def _copied_in_vain(self, table: TableRecord) -> str:
        return (
            f"{self.failure.message}: a copy did not help\n"
            f"  → change the table or its publications, then {copy_again(table.title)}"
        )


def _with_way_out(message: str, table: TableRecord) -> str:
    """The message of an error that was hoped to pass, for a table that is parked by it."""
    if "\n  → " in message:
        return message
    return f"{message}\n  → when its cause is gone, {copy_again(table.title)}"


@dataclass(frozen=True)
class CaughtUp(SimpleEvent):
    """Nothing up to ``position`` waits for the table."""

    event = Event.CAUGHT_UP
    position: Lsn

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return table.at(max(table.applied_through, self.position))


@dataclass(frozen=True)
class TimePassed(SimpleEvent):
    """A deferred table may be merged once its time has come, or when a cut is due.

    Attributes:
        now: seconds since 1970.
        is_cut_due: all tables should stand at one position now. A table that failed waits for
            its next attempt all the same, or it would be parked in a moment.
    """

    event = Event.TIME_PASSED
    now: float
    is_cut_due: bool

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        is_due = self.now >= table.next_due or (self.is_cut_due and not attempts.failures)
        return replace(table, deferred=False) if is_due else table
