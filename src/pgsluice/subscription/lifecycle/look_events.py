"""Events of looks at the catalog: what they have found, verified, and renamed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pgsluice.lsn import Lsn
from pgsluice.spool import AddedColumns, Claim, OldTarget, SourceView, TableRecord, TargetName
from pgsluice.subscription.lifecycle.table_events import (
    SimpleEvent,
    to_verify,
    with_pending,
)
from pgsluice.subscription.lifecycle.transitions import Attempts, Event

_NOWHERE = Lsn(0)


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
    why: ClassVar[str] = ""

    def kind(self, attempts: Attempts) -> Event:
        if self.copy_data or self.predecessor_oids:
            return Event.DISCOVERED
        return Event.DISCOVERED_WITHOUT_COPY

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, claim=Claim(self.predecessor_oids))


@dataclass(frozen=True)
class NotSent(SimpleEvent):
    """The server's publications send a table no longer; what they sent before is applied."""

    event = Event.NOT_SENT

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        error = table.error if table.is_active else None
        return replace(table, is_published=False, error=error)


@dataclass(frozen=True)
class PublishedAgain(SimpleEvent):
    """A table is sent that was not sent for a while: its changes of that time are missing."""

    event = Event.PUBLISHED_AGAIN
    why = "it was not sent for a while"

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, is_published=True, error=None)


@dataclass(frozen=True)
class Unpublished(SimpleEvent):
    """Publications of pgsluice take a table out, or there are none of pgsluice any more."""

    event = Event.UNPUBLISHED


@dataclass(frozen=True)
class LookedSame(SimpleEvent):
    """The stream tells all that a look at the catalog found.

    Attributes:
        fingerprint: what later looks are compared with.
        relations: see :class:`pgsluice.spool.SourceView`.
        looked_at, looked_on: where the server's WAL ended after the look, and its timeline.
        seen: the leaves that only the stream had brought before, and that the look has found, or
            found gone.
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
    """A look found columns that were added; the target gets them.

    Attributes:
        facts: of the source's table, as JSON.
    """

    facts: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        # Everything that was committed before the look has a position up to its end.
        columns = AddedColumns(self.looked_at, self.facts)
        return with_pending(self._looked(table), columns=columns)


@dataclass(frozen=True)
class LookedSuspicious(LookedSame):
    """A look found what may have changed rows, or may not: the table is marked to be verified."""

    doubt: str = ""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return to_verify(self._looked(table), self.doubt)


@dataclass(frozen=True)
class Assessed(SimpleEvent):
    """A look found what a table's target does not get, or that it gets all again.

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
        verification_number: the table's when the position was taken; with another one now, a
            reason came after that, and the table stays marked.
    """

    event = Event.UPDATED
    verification_number: int

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        is_newest = table.verification_number == self.verification_number
        return with_pending(table, verification="") if is_newest else table


@dataclass(frozen=True)
class ReasonEnded(SimpleEvent):
    """A look found that the reason for which a table is parked has ended.

    Attributes:
        cause: the reason and the catalog now. Should the table be parked for the reason again, it
            is not taken up before the catalog is another one.
    """

    event = Event.REASON_ENDED
    why = "the reason to park it has ended"
    cause: str

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, copied=replace(table.copied, cause=self.cause), error=None)


@dataclass(frozen=True)
class TargetTaken(SimpleEvent):
    """Another table of the subscription is applied to the target, or waits for a copy to it."""

    event = Event.TARGET_TAKEN

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(
            table,
            error=f"another table of this subscription has the target {table.title}\n"
            "  → give one of them another name",
            claim=replace(table.claim, any_source=False),
            parked_for="",
        )


@dataclass(frozen=True)
class Renamed:
    """The table has another name now, and takes the target of that name.

    Attributes:
        target: where its target lies, for people.
        predecessor_oids: other tables whose rows that target may have.
        old_target: from which its rows are copied; None: from the source.
        keeps_state: it waits for a copy, is parked or unpublished, or nothing was written yet:
            only its name changes.
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
            claim=replace(table.claim, predecessor_oids=self.predecessor_oids),
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
    """The target of the new name has all rows that the old one had.

    Attributes:
        position: up to which the old target was applied.
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
    """The table that had its target has another one now.

    Attributes:
        predecessor_oids: tables whose rows the target may have.
    """

    event = Event.REASON_ENDED
    why = "another table had its target"
    predecessor_oids: tuple[int, ...] = ()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        claim = replace(table.claim, predecessor_oids=self.predecessor_oids)
        return replace(table, claim=claim, error=None)
