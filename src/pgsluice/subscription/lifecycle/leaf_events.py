"""Events of partitions that came or went with rows, which alone are replaced at the target."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pgsluice.errors import Failure, Remedy
from pgsluice.spool import TableRecord, UnseenLeaf
from pgsluice.subscription.lifecycle.look_events import LookedSame
from pgsluice.subscription.lifecycle.table_events import (
    COPY_ATTEMPTS,
    LOOKS,
    CommittedUnderSnapshot,
    Rows,
    SimpleEvent,
    with_gone,
)
from pgsluice.subscription.lifecycle.transitions import Attempts, Event


@dataclass(frozen=True)
class LookedLeaves(LookedSame):
    """A look found partitions that came or went with rows, and nothing else that the stream does
    not tell.

    Attributes:
        leaves: the OIDs of those that came.
        gone: the OIDs of those that went, or are others now -> the conditions on their rows.
        verify: why the target is to be verified afterwards; empty: it is not.
    """

    event = Event.LOOK_LEAVES
    leaves: frozenset[int] = frozenset()
    gone: Rows = field(default_factory=dict)
    verify: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        looked = replace(self._looked(table), load_leaves=tuple(sorted(self.leaves)))
        if self.verify:
            number = table.verification_number + 1
            looked = replace(looked, to_verify=self.verify, verification_number=number)
        return with_gone(looked, self.gone)


@dataclass(frozen=True)
class LookedAside(SimpleEvent):
    """A look found more partitions while some are replaced.

    Attributes:
        fingerprint: what later looks are compared with.
    """

    event = Event.LOOK_ASIDE
    fingerprint: str

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, fingerprint=self.fingerprint)


@dataclass(frozen=True)
class LeavesApplied(SimpleEvent):
    """Changes are about to be applied while rows of partitions are replaced.

    Attributes:
        unseen: see :class:`pgsluice.spool.TableRecord`.
    """

    event = Event.LEAVES_APPLIED
    unseen: tuple[UnseenLeaf, ...]

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, unseen_leaves=self.unseen)


@dataclass(frozen=True)
class LeavesLoaded(CommittedUnderSnapshot):
    """The rows of the partitions are replaced at the target, which has all else as well."""

    event = Event.LEAVES_LOADED


@dataclass(frozen=True)
class LeavesFailed:
    """The partitions could not be loaded: what does not pass leads to a copy of the table.

    Attributes:
        rows: of the partitions that the failure names: see
            :func:`pgsluice.schema_rules.rows_of_partitions`.
    """

    failure: Failure
    rows: Rows | None = None

    def kind(self, attempts: Attempts) -> Event:
        if self.failure.remedy is Remedy.LOOK and attempts.looks < LOOKS:
            return Event.LEAVES_AWAIT_LOOK
        if self.rows is not None and self.failure.remedy in (Remedy.LOOK, Remedy.COPY):
            return Event.LEAVES_MORE
        match self.failure.remedy:
            case Remedy.WAIT | Remedy.LATER:
                return Event.COPY_FAILED_WAIT
            case Remedy.STOP:
                return Event.COPY_FAILED_STOP
            case Remedy.RETRY if attempts.failures + 1 < COPY_ATTEMPTS:
                return Event.COPY_FAILED_RETRY
            case Remedy.RETRY | Remedy.PARK | Remedy.COPY | Remedy.LOOK:
                return Event.LEAVES_GIVEN_UP

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        match self.kind(attempts):
            case Event.LEAVES_MORE:
                return with_gone(table, self.rows or {})
            case Event.LEAVES_GIVEN_UP | Event.LEAVES_AWAIT_LOOK:
                return replace(table, error=None)
        return replace(table, error=self.failure.message)
