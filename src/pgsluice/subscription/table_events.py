"""What happens to a subscription's tables: events with their facts.

Each class says which event of :data:`pgsluice.subscription.lifecycle.TRANSITIONS` it is, and
which fields of a table's record its facts change. The state is not theirs to change. Events
that concern the target's name are in :mod:`pgsluice.subscription.name_events`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pgsluice.errors import Remedy
from pgsluice.lsn import Lsn
from pgsluice.schema_rules import with_former_names
from pgsluice.spool import TableRecord
from pgsluice.subscription.lifecycle import Attempts, Event

_NOWHERE = Lsn(0)
BATCH_ATTEMPTS = 5
"""A table is parked after this many consecutive failures of the same work."""
COPY_ATTEMPTS = 5
"""A table is parked after this many consecutive failures of its copy."""
LOOKS = 3
"""Copy the table after this many consecutive catalog refreshes without rules."""
LOOK_RETRY_S = 1.0
"""Retry delay for a table waiting for the rules of a new partition."""
WAIT_S = 5.0
"""Retry delay where the cause of a failure lies outside of the table."""


class SimpleEvent:
    """An event that is always the same one, and clears what an error left."""

    event: ClassVar[Event]

    def kind(self, attempts: Attempts) -> Event:
        return self.event

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, error=None, deferred=False)


@dataclass(frozen=True)
class Discovered:
    """The publications send a table that the subscription does not know.

    Attributes:
        copy_data: whether the subscription copies new tables.
        predecessor_oids: tables that had this name, whose target it takes over. They had other
            rows, so it is copied whatever ``copy_data`` says.
    """

    copy_data: bool = True
    predecessor_oids: tuple[int, ...] = ()

    def kind(self, attempts: Attempts) -> Event:
        if self.copy_data or self.predecessor_oids:
            return Event.DISCOVERED
        return Event.DISCOVERED_WITHOUT_COPY

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, predecessor_oids=self.predecessor_oids)


@dataclass(frozen=True)
class NotSent(SimpleEvent):
    """The server's publications send a table no longer; what they sent before is applied."""

    event = Event.NOT_SENT

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        error = table.error if table.is_active else None
        return replace(table, is_published=False, error=error)


@dataclass(frozen=True)
class Unpublished(SimpleEvent):
    """Publications of pgsluice take a table out, or there are none of pgsluice any more."""

    event = Event.UNPUBLISHED


@dataclass(frozen=True)
class PublishedAgain(SimpleEvent):
    """A table is sent that was not sent for a while: its changes of that time are missing."""

    event = Event.PUBLISHED_AGAIN

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, is_published=True, error=None, deferred=False)


@dataclass(frozen=True)
class CopyRequested(SimpleEvent):
    """A user wants the table copied; the copy may replace a target of another source."""

    event = Event.COPY_REQUESTED

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, may_replace_foreign_target=True, error=None, deferred=False)


@dataclass(frozen=True)
class HoldReleased(SimpleEvent):
    """The spool does not hold the table's changes any more."""

    event = Event.HOLD_RELEASED


@dataclass(frozen=True)
class TimelineLeft(SimpleEvent):
    """The table was copied past the point where a standby was promoted.

    It has rows that the new primary never had, and its position hides what the new primary
    committed at such positions.
    """

    event = Event.TIMELINE_LEFT


@dataclass(frozen=True)
class LookedSame(SimpleEvent):
    """The stream tells all that a look at the catalog found.

    Attributes:
        fingerprint: what later looks are compared with.
        relations: see :class:`pgsluice.spool.TableRecord`.
        looked_at, looked_on: where the server's WAL ended after the look, and its timeline.
    """

    event = Event.LOOK_SAME
    fingerprint: str
    relations: tuple[int, ...] = ()
    looked_at: Lsn = _NOWHERE
    looked_on: int = 0

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        if self.fingerprint == table.fingerprint:  # as old as it was
            return replace(table, relations=self.relations)
        return self._looked(table)

    def _looked(self, table: TableRecord) -> TableRecord:
        return replace(
            table,
            fingerprint=self.fingerprint,
            relations=self.relations,
            looked_at=self.looked_at,
            looked_on=self.looked_on,
        )


@dataclass(frozen=True)
class LookedColumns(LookedSame):
    """A look found columns that were added; the target gets them.

    Attributes:
        facts: of the source's table, as JSON.
    """

    event = Event.LOOK_COLUMNS
    facts: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        # Everything that was committed before the look has a position up to its end.
        return replace(self._looked(table), alter_after=self.looked_at, alter_facts=self.facts)


@dataclass(frozen=True)
class LookedCopy(SimpleEvent):
    """A look at the catalog found what the stream does not tell: the table has to be copied."""

    event = Event.LOOK_COPY


@dataclass(frozen=True)
class LookedSuspicious(LookedSame):
    """A look found what may have changed rows, or may not: the table is marked to be verified.

    Attributes:
        why: a sentence for people.
    """

    event = Event.LOOK_VERIFY
    why: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            self._looked(table),
            to_verify=self.why,
            verification_number=table.verification_number + 1,
        )


@dataclass(frozen=True)
class Assessed:
    """A look found what a table's target does not get, or that it gets all again.

    Attributes:
        incomplete: see :class:`pgsluice.spool.TableRecord`.
    """

    incomplete: tuple[str, ...]

    def kind(self, attempts: Attempts) -> Event:
        return Event.ASSESSED

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, incomplete=self.incomplete)


@dataclass(frozen=True)
class VerifiedEqual(SimpleEvent):
    """The target equals the source at a position that was taken after the table was marked.

    Attributes:
        verification_number: the table's when the position was taken; with another one now, a
            reason came after that, and the table stays marked.
    """

    event = Event.VERIFIED_EQUAL
    verification_number: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        is_newest = table.verification_number == self.verification_number
        return replace(table, to_verify="") if is_newest else table


@dataclass(frozen=True)
class VerifiedDifferent(SimpleEvent):
    """The target differs from the source, or cannot be compared: the table has to be copied."""

    event = Event.VERIFIED_COPY


@dataclass(frozen=True)
class ReasonEnded(SimpleEvent):
    """A look found that the reason for which a table is parked has ended.

    Attributes:
        cause: the reason and the catalog now. Should the table be parked for the reason again, it
            is not taken up before the catalog is another one.
    """

    event = Event.REASON_ENDED
    cause: str

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(super().change(table, attempts), copied_for=self.cause, parked_for="")


@dataclass(frozen=True)
class CopyBegun(SimpleEvent):
    """A snapshot is about to be taken; the spool keeps what follows ``position``."""

    event = Event.COPY_BEGUN
    position: Lsn

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, applied_through=self.position, old_target=None)


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
            error=None,
        )


@dataclass(frozen=True)
class CopyFinished(SimpleEvent):
    """The copy is committed at the target.

    Attributes:
        position, timeline: the snapshot's.
        version: the target's.
        rows: how many were copied.
    """

    event = Event.COPY_FINISHED
    position: Lsn
    timeline: int
    version: int
    rows: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            applied_through=self.position,
            committed=self.position,
            copied_at=self.position,
            copied_on=self.timeline,
            version=self.version,
            rows=self.rows,
            error=None,
            deferred=False,
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
    """The copy's task failed; each attempt looks at the catalog and takes a snapshot anew.

    Attributes:
        remedy, message: of the error.
        reason: of a table that is parked, if it has one that a look can see end.
    """

    remedy: Remedy
    message: str
    reason: str | None = None

    def kind(self, attempts: Attempts) -> Event:
        match self.remedy:
            case Remedy.PARK:
                return Event.COPY_FAILED_PARK
            case Remedy.WAIT:
                return Event.COPY_FAILED_WAIT
            case Remedy.STOP:
                return Event.COPY_FAILED_STOP
            case _ if attempts.failures + 1 >= COPY_ATTEMPTS:
                return Event.COPY_FAILED_LAST
            case Remedy.RETRY | Remedy.COPY | Remedy.LOOK:
                return Event.COPY_FAILED_RETRY

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, error=self.message, parked_for=self.reason or "")


@dataclass(frozen=True)
class BatchApplied(SimpleEvent):
    """The table's task brought it to the end of a batch.

    Attributes:
        through: the batch's end.
        committed: position of the target's newest commit.
        version: the target's; -1: not known.
        changes: how many were applied.
        rows_skipped: how many rows the target lacked.
        merge_s: how long that took.
        next_due: until when the next merge waits (seconds since 1970); None: it need not.
        is_altered: the target got the columns that were due.
        left_out: columns that the target did not get, since the source's table has them no
            longer.
    """

    event = Event.BATCH_APPLIED
    through: Lsn
    committed: Lsn
    version: int = -1
    changes: int = 0
    rows_skipped: int = 0
    merge_s: float = 0.0
    next_due: float | None = None
    is_altered: bool = False
    left_out: frozenset[str] = frozenset()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        if self.is_altered:
            table = replace(table, alter_after=_NOWHERE, alter_facts="")
        if self.left_out:
            # Should a later look find a column of such a name, old rows lack its values.
            table = replace(table, fingerprint=with_former_names(table.fingerprint, self.left_out))
        return replace(
            table,
            applied_through=max(table.applied_through, self.through),
            committed=max(table.committed, self.committed),
            version=self.version if self.version >= 0 else table.version,
            rows=table.rows + self.changes,
            rows_skipped=table.rows_skipped + self.rows_skipped,
            merge_s=self.merge_s,
            deferred=self.next_due is not None,
            next_due=table.next_due if self.next_due is None else self.next_due,
            error=None,
        )


@dataclass(frozen=True)
class BatchFailed:
    """The table's task failed; its position stays, and the spool keeps its changes.

    Attributes:
        remedy, message: of the error.
        now: seconds since 1970.
        reason: of a table that is parked, if it has one that a look can see end.
        cause: what a copy would be made for.
        is_copied_for: the table was copied for this cause before: a copy does not help.
    """

    remedy: Remedy
    message: str
    now: float
    reason: str | None = None
    cause: str = ""
    is_copied_for: bool = False

    def kind(self, attempts: Attempts) -> Event:
        if self.is_copied_for and self._asks_for_copy(attempts):
            return Event.BATCH_FAILED_PARK
        match self.remedy:
            case Remedy.PARK:
                return Event.BATCH_FAILED_PARK
            case Remedy.COPY:
                return Event.BATCH_FAILED_COPY
            case Remedy.WAIT:
                return Event.BATCH_FAILED_WAIT
            case Remedy.STOP:
                return Event.BATCH_FAILED_STOP
            case Remedy.RETRY if attempts.failures + 1 >= BATCH_ATTEMPTS:
                return Event.BATCH_FAILED_LAST
            case Remedy.RETRY:
                return Event.BATCH_FAILED_RETRY
            case Remedy.LOOK if attempts.looks + 1 >= LOOKS:
                return Event.BATCH_FAILED_LAST_LOOK
            case Remedy.LOOK:
                return Event.BATCH_FAILED_LOOK

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        match self.kind(attempts):
            case Event.BATCH_FAILED_LOOK:
                # Nobody has to hear of it: the next look most often finds the rules.
                return replace(table, deferred=True, next_due=self.now + LOOK_RETRY_S)
            case Event.BATCH_FAILED_RETRY:
                pause_s = float(2 ** (attempts.failures + 1))
            case Event.BATCH_FAILED_WAIT:
                pause_s = WAIT_S
            case Event.BATCH_FAILED_STOP:
                return replace(table, error=self.message)
            case Event.BATCH_FAILED_LAST_LOOK:
                return replace(table, deferred=False, copied_for=self.cause)
            case Event.BATCH_FAILED_COPY:
                return replace(table, error=self.message, deferred=False, copied_for=self.cause)
            case Event.BATCH_FAILED_PARK if self.remedy is not Remedy.PARK:
                return replace(table, error=self._copied_in_vain(table), deferred=False)
            case _:
                return replace(
                    table, error=self.message, deferred=False, parked_for=self.reason or ""
                )
        return replace(table, error=self.message, deferred=True, next_due=self.now + pause_s)

    def _asks_for_copy(self, attempts: Attempts) -> bool:
        is_last_look = self.remedy is Remedy.LOOK and attempts.looks + 1 >= LOOKS
        return self.remedy is Remedy.COPY or is_last_look

    def _copied_in_vain(self, table: TableRecord) -> str:
        return (
            f"{self.message}: a copy did not help\n"
            f"  → change the table or its publications, then pgsluice copy CONFIG {table.title}"
        )


@dataclass(frozen=True)
class CaughtUp(SimpleEvent):
    """Nothing up to ``position`` waits for the table."""

    event = Event.CAUGHT_UP
    position: Lsn

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, applied_through=max(table.applied_through, self.position))


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
