"""Events that catalog refreshes cause: differences, partitions whose rows are replaced,
verifications and new names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgsluice.errors import Failure, Remedy
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    AddedColumns,
    Claim,
    OldTarget,
    Partitions,
    SourceView,
    TableRecord,
    TargetName,
    UnseenLeaf,
)
from pgsluice.subscription.lifecycle.table_events import (
    COPY_ATTEMPTS,
    LOOKS,
    CopyAbandoned,
    Rows,
    SimpleEvent,
    to_verify,
    with_gone,
    with_pending,
)
from pgsluice.subscription.lifecycle.transitions import Attempts, Event

_NOWHERE = Lsn(0)


@dataclass(frozen=True)
class Discovered(SimpleEvent):
    """The publications send a table that the subscription does not know yet.

    Attributes:
        copy_data: the subscription's setting: whether it copies new tables.
        predecessor_oids: tables that had this name, whose target the table takes over. They had
            other rows, so the table is copied regardless of ``copy_data``.
    """

    copy_data: bool = True
    predecessor_oids: tuple[int, ...] = ()

    def kind(self, attempts: Attempts) -> Event:
        if self.copy_data or self.predecessor_oids:
            return Event.DISCOVERED
        return Event.DISCOVERED_WITHOUT_COPY

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, claim=Claim(self.predecessor_oids))


@dataclass(frozen=True)
class NotSent(SimpleEvent):
    """The server's publications no longer send a table; changes that they sent before are still
    applied."""

    event = Event.NOT_SENT

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        error = table.error if table.is_active else None
        return replace(table, is_published=False, error=error)


@dataclass(frozen=True)
class PublishedAgain(SimpleEvent):
    """A table is published again; changes from the time in between are missing."""

    event = Event.PUBLISHED_AGAIN
    why = "it was not sent for a while"

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, is_published=True, error=None)


@dataclass(frozen=True)
class Unpublished(SimpleEvent):
    """pgsluice's own publications exclude the table, or there are no own publications any more."""

    event = Event.UNPUBLISHED


@dataclass(frozen=True)
class Looked(SimpleEvent):
    """A catalog refresh compared a table with the last refresh; no full copy is needed.

    Attributes:
        fingerprint: the baseline for later catalog refreshes.
        relations: see :class:`pgsluice.spool.SourceView`.
        looked_at, looked_on: the end of the server's WAL after the refresh, and its timeline.
        seen: leaf partitions that only the stream had shown before; the refresh found them, or
            found that they are gone.
        facts: JSON of the source table's relation metadata if columns were added, which the target
            gets; else empty.
        doubt: why rows may have changed without changes in the stream, so that the table is
            verified; empty: they have not.
        gone: partitions that were removed or replaced -> the conditions on their rows at the
            target; None: no rows of partitions are replaced.
        leaves: the OIDs of new partitions whose rows are read.
    """

    why = "partitions were attached or removed with rows"
    fingerprint: str
    relations: tuple[int, ...] = ()
    looked_at: Lsn = _NOWHERE
    looked_on: int = 0
    seen: frozenset[int] = frozenset()
    facts: str = ""
    doubt: str = ""
    gone: Rows | None = None
    leaves: frozenset[int] = frozenset()

    def kind(self, attempts: Attempts) -> Event:
        return Event.UPDATED if self.gone is None else Event.PARTITIONS_NEEDED

    @property
    def keeps_columns_and_partitions(self) -> bool:
        """Whether the target has all columns and the rows of all partitions."""
        return not self.facts and self.gone is None

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        is_same = self.fingerprint == table.source.fingerprint and not self.seen
        if is_same and self.keeps_columns_and_partitions and not self.doubt:  # as old as it was
            return replace(table, source=replace(table.source, relations=self.relations))
        source = SourceView(self.fingerprint, self.relations, self.looked_at, self.looked_on)
        unseen = [leaf for leaf in table.pending.unseen_leaves if leaf.oid not in self.seen]
        looked = with_pending(replace(table, source=source), unseen_leaves=tuple(unseen))
        if self.facts:
            # Everything that was committed before the look has a position up to its end.
            looked = with_pending(looked, columns=AddedColumns(self.looked_at, self.facts))
        if self.gone is not None:
            looked = replace(looked, copying=Partitions(tuple(sorted(self.leaves))))
        if self.doubt:
            looked = to_verify(looked, self.doubt)
        return looked if self.gone is None else with_gone(looked, self.gone)


@dataclass(frozen=True)
class LookedAside(SimpleEvent):
    """A catalog refresh found more changed partitions while some are being replaced."""

    event = Event.LOOK_ASIDE
    fingerprint: str

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, source=replace(table.source, fingerprint=self.fingerprint))


@dataclass(frozen=True)
class LeavesApplied(SimpleEvent):
    """Changes of unseen leaf partitions (:class:`pgsluice.spool.Pending`) are about to be applied
    while rows of partitions are being replaced."""

    event = Event.COPY_UPDATED
    unseen: tuple[UnseenLeaf, ...]

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return with_pending(table, unseen_leaves=self.unseen)


@dataclass(frozen=True)
class LeavesFailed(SimpleEvent):
    """The partitions' rows could not be replaced; a permanent failure leads to a copy of the table.

    Attributes:
        rows: the conditions on rows of the partitions in the failure: see
            :func:`pgsluice.schema_rules.known.rows_of_partitions`.
    """

    why = CopyAbandoned.why
    failure: Failure
    rows: Rows | None = None

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


@dataclass(frozen=True)
class Assessed(SimpleEvent):
    """A catalog refresh found changes that the target does not get, or that it gets all changes
    again (:class:`pgsluice.spool.TableRecord`)."""

    event = Event.DESCRIBED
    incomplete: tuple[str, ...]

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, incomplete=self.incomplete)


@dataclass(frozen=True)
class VerifiedEqual(SimpleEvent):
    """The target equals the source at a position that was taken after the table was marked.

    Attributes:
        verification_number: the table's number when the position was taken. If it differs now, the
            table was marked again since then and stays marked.
    """

    event = Event.UPDATED
    verification_number: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        is_newest = table.verification_number == self.verification_number
        return with_pending(table, verification="") if is_newest else table


@dataclass(frozen=True)
class ReasonEnded(SimpleEvent):
    """A catalog refresh found that the reason for parking a table has ended.

    Attributes:
        cause: the reason, with the state of the catalog. If the table is parked for this reason
            again, it is not retried before the catalog changes.
    """

    event = Event.REASON_ENDED
    why = "the reason to park it has ended"
    cause: str

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, copied=replace(table.copied, cause=self.cause), error=None)


@dataclass(frozen=True)
class TargetTaken(SimpleEvent):
    """Another table of the subscription uses the target, or waits for a copy to it."""

    event = Event.TARGET_TAKEN

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            error=f"another table of this subscription already uses the target {table.title}\n"
            "  → rename one of the two tables in PostgreSQL; pgsluice then copies this table by "
            "itself",
            claim=replace(table.claim, any_source=False),
            parked_for="",
        )


@dataclass(frozen=True)
class Renamed:
    """The table has a new name, and uses the target of that name.

    Attributes:
        target: where its target is, as text for the user.
        predecessor_oids: other tables whose rows may be in that target.
        old_target: the target from which its rows are copied; None: copy from the source.
        keeps_state: only its name changes, because it waits for a copy, is parked or unpublished,
            or nothing was written yet.
    """

    name: TargetName
    target: str = ""
    predecessor_oids: tuple[int, ...] = ()
    old_target: OldTarget | None = None
    keeps_state: bool = False

    @property
    def why(self) -> str:
        return "" if self.kind(Attempts()) is Event.DESCRIBED else "it was renamed"

    def kind(self, attempts: Attempts) -> Event:
        if self.old_target is not None:
            return Event.RENAMED_WITH_TARGET
        return Event.DESCRIBED if self.keeps_state else Event.RENAMED_WITHOUT_TARGET

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        namespace, name = self.name
        renamed = replace(
            table,
            namespace=namespace,
            name=name,
            target=self.target,
            claim=replace(table.claim, predecessor_oids=self.predecessor_oids, repairs=False),
        )
        match self.kind(attempts):
            case Event.DESCRIBED:
                return renamed
            case Event.RENAMED_WITH_TARGET:
                number = table.copy_number + 1
                renamed = replace(renamed, copying=self.old_target, copy_number=number)
        return replace(renamed, version=-1, error=None)


@dataclass(frozen=True)
class OldTargetCopied(SimpleEvent):
    """The target of the new name has all rows of the previous target, up to its position."""

    event = Event.OLD_TARGET_COPIED
    position: Lsn
    version: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            committed=self.position,
            version=self.version,
            error=None,
        )


@dataclass(frozen=True)
class TargetFreed(SimpleEvent):
    """The table that used its target has another one now, and may have left rows there."""

    event = Event.REASON_ENDED
    why = "another table had its target"
    predecessor_oids: tuple[int, ...] = ()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        claim = replace(table.claim, predecessor_oids=self.predecessor_oids)
        return replace(table, claim=claim, error=None)
