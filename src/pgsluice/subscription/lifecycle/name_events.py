"""Events of a table whose name is another one now, or whose target another table has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgsluice.lsn import Lsn
from pgsluice.spool import OldTarget, TableRecord, TargetName
from pgsluice.subscription.lifecycle.table_events import SimpleEvent
from pgsluice.subscription.lifecycle.transitions import Attempts, Event


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
