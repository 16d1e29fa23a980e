"""Events of tables of which only the rows of some partitions are replaced at the target."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pgsluice.errors import Failure, Remedy
from pgsluice.spool import Partitions, TableRecord, UnseenLeaf
from pgsluice.subscription.lifecycle.look_events import LookedSame
from pgsluice.subscription.lifecycle.table_events import (
    COPY_ATTEMPTS,
    LOOKS,
    CommittedUnderSnapshot,
    CopyAbandoned,
    Rows,
    SimpleEvent,
    to_verify,
    with_gone,
    with_pending,
)
from pgsluice.subscription.lifecycle.transitions import Attempts, Event


@dataclass(frozen=True)
class LookedLeaves(LookedSame):
    """A catalog refresh found partitions that were attached or removed together with their rows,
    and nothing else that the stream does not carry.

    Attributes:
        leaves: the OIDs of new partitions.
        gone: the OIDs of partitions that were removed or replaced -> the conditions on their rows.
        verify: why to verify the target afterwards; empty: do not.
    """

    event = Event.PARTITIONS_NEEDED
    why = "partitions were attached or removed with rows"
    leaves: frozenset[int] = frozenset()
    gone: Rows = field(default_factory=dict)
    verify: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        looked = replace(self._looked(table), copying=Partitions(tuple(sorted(self.leaves))))
        if self.verify:
            looked = to_verify(looked, self.verify)
        return with_gone(looked, self.gone)


@dataclass(frozen=True)
class LookedAside(SimpleEvent):
    """A catalog refresh found more changed partitions while some are being replaced.

    Attributes:
        fingerprint: the baseline for later catalog refreshes.
    """

    event = Event.LOOK_ASIDE
    fingerprint: str

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, source=replace(table.source, fingerprint=self.fingerprint))


@dataclass(frozen=True)
class LeavesApplied(SimpleEvent):
    """Changes are about to be applied while rows of partitions are being replaced.

    Attributes:
        unseen: see :class:`pgsluice.spool.Pending`.
    """

    event = Event.COPY_UPDATED
    unseen: tuple[UnseenLeaf, ...]

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return with_pending(table, unseen_leaves=self.unseen)


@dataclass(frozen=True)
class LeavesLoaded(CommittedUnderSnapshot):
    """The rows of the partitions are replaced at the target, which also has all other changes."""

    event = Event.COPY_FINISHED


@dataclass(frozen=True)
class LeavesFailed:
    """The partitions' rows could not be replaced; a permanent failure leads to a copy of the table.

    Attributes:
        rows: the conditions on rows of the partitions in the failure: see
            :func:`pgsluice.schema_rules.rows_of_partitions`.
    """

    failure: Failure
    rows: Rows | None = None

    @property
    def why(self) -> str:
        return CopyAbandoned.why

    def kind(self, attempts: Attempts) -> Event:
        if self.failure.remedy is Remedy.LOOK and attempts.looks < LOOKS:
            return Event.COPY_AWAITS_LOOK
        if self._has_more():
            return Event.COPY_UPDATED
        match self.failure.remedy:
            case Remedy.WAIT | Remedy.LATER:
                return Event.COPY_UPDATED
            case Remedy.STOP:
                return Event.COPY_STOPPED
            case Remedy.RETRY if attempts.failures + 1 < COPY_ATTEMPTS:
                return Event.COPY_RETRIED
            case Remedy.RETRY | Remedy.PARK | Remedy.COPY | Remedy.LOOK:
                return Event.COPY_ABANDONED

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        kind = self.kind(attempts)
        if kind is Event.COPY_UPDATED and self._has_more():
            return with_gone(table, self.rows or {})
        is_over = kind in (Event.COPY_ABANDONED, Event.COPY_AWAITS_LOOK)
        return replace(table, error=None if is_over else self.failure.message)

    def _has_more(self) -> bool:
        return self.rows is not None and self.failure.remedy in (Remedy.LOOK, Remedy.COPY)
