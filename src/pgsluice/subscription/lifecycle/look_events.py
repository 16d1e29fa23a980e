"""Events that catalog refreshes cause: differences, verifications and new names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pgsluice.lsn import Lsn
from pgsluice.spool import AddedColumns, Claim, OldTarget, SourceView, TableRecord, TargetName
from pgsluice.subscription.lifecycle.table_events import SimpleEvent, to_verify, with_pending
from pgsluice.subscription.lifecycle.transitions import Attempts, Event

_NOWHERE = Lsn(0)


@dataclass(frozen=True)
class Discovered:
    """The publications send a table that the subscription does not know yet.

    Attributes:
        copy_data: the subscription's setting: whether it copies new tables.
        predecessor_oids: tables that had this name, whose target the table takes over. They had
            other rows, so the table is copied regardless of ``copy_data``.
    """

    copy_data: bool = True
    predecessor_oids: tuple[int, ...] = ()
    why: ClassVar[str] = ""

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
class LookedSame(SimpleEvent):
    """A catalog refresh found only changes that the stream also carries.

    Attributes:
        fingerprint: the baseline for later catalog refreshes.
        relations: see :class:`pgsluice.spool.SourceView`.
        looked_at, looked_on: the end of the server's WAL after the refresh, and its timeline.
        seen: leaf partitions that only the stream had shown before; the refresh found them, or
            found that they are gone.
    """

    event = Event.UPDATED
    fingerprint: str
    relations: tuple[int, ...] = ()
    looked_at: Lsn = _NOWHERE
    looked_on: int = 0
    seen: frozenset[int] = frozenset()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        if self.fingerprint == table.source.fingerprint and not self.seen:  # as old as it was
            return replace(table, source=replace(table.source, relations=self.relations))
        return self._looked(table)

    def _looked(self, table: TableRecord) -> TableRecord:
        source = SourceView(self.fingerprint, self.relations, self.looked_at, self.looked_on)
        unseen = [leaf for leaf in table.pending.unseen_leaves if leaf.oid not in self.seen]
        return with_pending(replace(table, source=source), unseen_leaves=tuple(unseen))


@dataclass(frozen=True)
class LookedColumns(LookedSame):
    """A catalog refresh found added columns; the target gets them.

    Attributes:
        facts: JSON of the source table's relation metadata.
    """

    facts: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        # Everything that was committed before the look has a position up to its end.
        columns = AddedColumns(self.looked_at, self.facts)
        return with_pending(self._looked(table), columns=columns)


@dataclass(frozen=True)
class LookedSuspicious(LookedSame):
    """A catalog refresh found a change that may have changed rows: the table is marked for
    verification."""

    doubt: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return to_verify(self._looked(table), self.doubt)


@dataclass(frozen=True)
class Assessed(SimpleEvent):
    """A catalog refresh found changes that the target does not get, or that it gets all changes
    again.

    Attributes:
        incomplete: see :class:`pgsluice.spool.TableRecord`.
    """

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
            "  → rename one of the two tables in PostgreSQL",
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
    """The target of the new name has all rows of the previous target.

    Attributes:
        position: the position up to which the previous target was applied.
    """

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
    """The table that used its target has another one now.

    Attributes:
        predecessor_oids: tables whose rows may be in the target.
    """

    event = Event.REASON_ENDED
    why = "another table had its target"
    predecessor_oids: tuple[int, ...] = ()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        claim = replace(table.claim, predecessor_oids=self.predecessor_oids)
        return replace(table, claim=claim, error=None)
