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
            deferred=False,
            may_replace_foreign_target=False,
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

    def kind(self, attempts: Attempts) -> Event:
        if self.old_target is not None:
            return Event.RENAMED_WITH_TARGET
        return Event.NAME_CHANGED if self.keeps_state else Event.RENAMED_WITHOUT_TARGET

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        namespace, name = self.name
        renamed = replace(
            table,
            namespace=namespace,
            name=name,
            target=self.target,
            predecessor_oids=self.predecessor_oids,
            old_target=self.old_target,
        )
        match self.kind(attempts):
            case Event.NAME_CHANGED:
                return renamed
            case Event.RENAMED_WITH_TARGET:
                renamed = replace(renamed, copy_number=table.copy_number + 1)
        return replace(renamed, version=-1, error=None, deferred=False)


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
            old_target=None,
            predecessor_oids=(),
            error=None,
        )


@dataclass(frozen=True)
class OldTargetUnusable(SimpleEvent):
    """The target of the old name does not have the rows that the record says, or its sink
    cannot read them: they are copied from the source."""

    event = Event.OLD_TARGET_UNUSABLE

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, old_target=None)


@dataclass(frozen=True)
class TargetFreed(SimpleEvent):
    """The table that had its target has another one now.

    Attributes:
        predecessor_oids: tables whose rows the target may have.
    """

    event = Event.TARGET_FREED
    predecessor_oids: tuple[int, ...] = ()

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        return replace(table, predecessor_oids=self.predecessor_oids, error=None)
