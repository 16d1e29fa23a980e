"""A subscription's tables against a model of source, spool and targets, in any order of events.

The model knows every change that was committed, and whether the stream carries it. Crashes
leave the targets as they are and lose what was not in the record. After each step:

- no change is at a target twice, and none that the table is applied through is missing there;
- no two tables are applied to one target, or wait for a copy to it;
- a parked table has a reason;
- a table has only what its state uses;
- a copy that a user asked for is made, or the table is parked with a reason;
- a target's position and the subscription's only rise;
- after a look, each table that is sent has the target of its name.

Targets keep all their versions, as Delta's do: a renamed table is copied from one of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.examples import examples

from pgsluice.errors import Failure, Remedy
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.schema_rules.known import ColumnState, SourceFingerprint
from pgsluice.sinks.target import TableOptions
from pgsluice.spool import Owner, SpoolIdentity, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.base.work import TaskResult
from pgsluice.subscription.lifecycle.look_events import NotSent, OldTargetCopied
from pgsluice.subscription.lifecycle.table_events import (
    BatchApplied,
    BatchFailed,
    CaughtUp,
    CopyAbandoned,
    CopyBegun,
    CopyFailed,
    CopyFinished,
    CopyPlanned,
    CopySuperseded,
    HoldReleased,
)
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.catalog_look import CatalogLook, SourceState

NAMES = ("a", "b", "c")
OUTCOMES = st.sampled_from(["done"] * 8 + ["crash", *Remedy])
CONNECTION = cast(Any, SimpleNamespace(info=SimpleNamespace(server_version=180000)))
IDENTITY = SpoolIdentity(system_identifier="1", timeline=1, database="d", slot="s")
BEGIN = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1))


class CrashError(Exception):
    """The process ends between a target's commit and the record's."""


@dataclass
class MemoryStore:
    """The record's file."""

    record: SubscriptionRecord = BEGIN

    def save(self, record: SubscriptionRecord) -> None:
        self.record = record


@dataclass
class Change:
    """A committed change; the stream carries it, or a look has to find it."""

    position: int
    is_streamed: bool


@dataclass
class SourceTable:
    """A table at the server."""

    oid: int
    name: str
    is_sent: bool = True
    labels: int = 1
    rules: int = 1
    changes: list[Change] = field(default_factory=list)
    looked_at: int = 0

    def replicated(self) -> ReplicatedTable:
        facts = RelationFacts(
            self.oid, "s", self.name, "r", self.oid, "s", self.name, ("id",), ("id",), "d", 1, ()
        )
        actions = frozenset({"insert"})
        fingerprint = SourceFingerprint(
            filenodes={self.oid: 1},
            columns={1: ColumnState("id", 1)},
            actions=actions,
            rules=str(self.rules),
            types={"label": str(self.labels)},
        )
        return ReplicatedTable(facts, None, None, fingerprint)


@dataclass
class Target:
    """A version of a target table; its position is in the same commit as its content."""

    oid: int
    copy_number: int
    position: int
    changes: list[Change]


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.clock = 1
        self.next_oid = 1
        self.sources: list[SourceTable] = []
        self.versions: dict[str, list[Target]] = {}
        self.asked: set[int] = set()
        self.position = Lsn(1)
        self.floor = 1
        self.restart()

    def restart(self) -> None:
        self.tables = SubscriptionTables(cast(Any, self.store), lambda _: None)

    @initialize(has_rules=st.booleans())
    def begin(self, has_rules: bool) -> None:
        self.has_rules = has_rules
        for name in NAMES[:2]:
            self.create(name)
        self.look()
        self.copy_all("done")

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # The source

    @precondition(lambda self: len(self.sources) < 3)
    @rule(name=st.sampled_from(NAMES))
    def create(self, name: str) -> None:
        if all(source.name != name for source in self.sources):
            self.sources.append(SourceTable(self.next_oid, name))
            self.next_oid += 1

    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        for source in self.sources * count:
            source.changes.append(Change(self.tick(), source.is_sent))

    @rule(data=st.data(), is_label=st.booleans())
    def change_what_the_stream_does_not_tell(self, data: st.DataObject, is_label: bool) -> None:
        if self.sources:
            source = data.draw(st.sampled_from(self.sources))
            source.changes.append(Change(self.tick(), is_streamed=False))
            if is_label:
                source.labels += 1
            else:
                source.rules += 1

    @rule(data=st.data(), is_made_again=st.booleans())
    def drop(self, data: st.DataObject, is_made_again: bool) -> None:
        if self.sources:
            source = data.draw(st.sampled_from(self.sources))
            self.sources.remove(source)
            if is_made_again:
                self.create(source.name)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def rename(self, data: st.DataObject, name: str) -> None:
        if self.sources and all(source.name != name for source in self.sources):
            data.draw(st.sampled_from(self.sources)).name = name

    @precondition(lambda self: len(self.sources) > 1)
    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        first, second = data.draw(st.permutations(self.sources))[:2]
        first.name, second.name = second.name, first.name

    @rule(data=st.data())
    def send_or_not(self, data: st.DataObject) -> None:
        """The publications change; a look follows before anything else is done."""
        if self.sources:
            source = data.draw(st.sampled_from(self.sources))
            source.is_sent = not source.is_sent
            self.look()

    # The subscription

    @rule()
    def look(self) -> None:
        sent = [source for source in self.sources if source.is_sent]
        look = CatalogLook(
            CONNECTION,
            IDENTITY,
            SourceState(
                [source.replicated() for source in sent], Lsn(self.clock), 1, self.has_rules
            ),
            self.tables.durable.tables,
            TableOptions(),
        )
        look.record(self.tables, self.new_record, copy_data=True)
        for source in sent:
            source.looked_at = self.clock
            assert self.tables.record.tables[source.oid].name == source.name
        oids = {source.oid for source in sent}
        for oid, table in self.tables.record.tables.items():
            assert oid in oids or table.is_active, "it would hold the spool for ever"

    def new_record(self, table: ReplicatedTable) -> TableRecord:
        return TableRecord("s", table.facts.name, applied_through=self.tables.position)

    @rule(data=st.data())
    def request_copy(self, data: st.DataObject) -> None:
        oids = sorted(self.tables.record.tables)
        if oids:
            oid = data.draw(st.sampled_from(oids))
            self.tables.request_copy(oid)
            table = self.tables.record.tables[oid]
            assert table.state is TableState.INITIALISE or table.error
            if table.state is TableState.INITIALISE:
                self.asked.add(oid)

    @rule(is_full=st.sampled_from([True, False, False, False]))
    def release(self, is_full: bool) -> None:
        """The spool drops all that it has."""
        if not is_full:
            return
        with self.tables.changing():
            floor = Lsn(self.clock)
            self.floor = self.clock
            self.tables.advance(floor)
            for oid, table in self.tables.record.tables.items():
                if table.applied_through < floor:
                    self.tables.apply(oid, HoldReleased())

    @rule(outcome=OUTCOMES)
    def copy(self, outcome: str) -> None:
        try:
            self.copy_all(outcome)
        except CrashError:
            self.restart()

    def copy_all(self, outcome: str) -> None:
        self.copy_renamed(outcome)
        pending = {o: t for o, t in self.tables.record.tables.items() if t.is_to_copy}
        with self.tables.changing():
            for oid in pending:
                self.tables.apply(oid, CopyBegun(self.tables.position))
        snapshot = self.clock
        sources = {source.oid: source for source in self.sources if source.is_sent}
        planned = []
        with self.tables.changing():
            for oid in pending:
                if oid not in sources:
                    self.tables.apply(oid, NotSent())
                    continue
                sources[oid].looked_at = snapshot
                fingerprint = sources[oid].replicated().fingerprint.to_text()
                planned.append((oid, self.tables.apply(oid, CopyPlanned(fingerprint)).table))
        for oid, table in planned:
            if outcome in tuple(Remedy):
                event: Any = CopyFailed(Failure(Remedy(outcome), "why"))
            else:
                event = self.load(oid, table, sources[oid], snapshot)
            if outcome == "crash":
                raise CrashError
            self.tables.apply(oid, event)

    def copy_renamed(self, outcome: str) -> None:
        is_look_due = False
        for oid, table in self.tables.record.tables.items():
            old = table.old_target
            if not table.is_to_copy or table.state is TableState.INITIALISE or old is None:
                continue
            content = self.versions[old.name][old.version]
            expected = (oid, old.copy_number, int(table.committed))
            assert (content.oid, content.copy_number, content.position) == expected
            event: Any = CopyAbandoned("why")
            if outcome not in tuple(Remedy):
                event = self.write(oid, table, content.position, content.changes)
                if event is None:
                    event = OldTargetCopied(table.committed, self.version(table.name))
                elif isinstance(event, CopySuperseded):
                    event = CopyAbandoned("why")
            if outcome == "crash":
                raise CrashError
            self.tables.apply(oid, event)
            is_look_due |= isinstance(event, OldTargetCopied)
        if is_look_due:
            self.look()

    def load(self, oid: int, table: TableRecord, source: SourceTable, snapshot: int) -> Any:
        failure = self.write(oid, table, snapshot, source.changes)
        if failure is not None:
            return failure
        return CopyFinished(Lsn(snapshot), 1, self.version(table.name), len(source.changes))

    def write(self, oid: int, table: TableRecord, position: int, changes: list[Change]) -> Any:
        """Replace a target's content; None where that is done, or was before a crash."""
        target = self.target(table.name)
        if target is not None and target.oid not in (oid, *table.claim.predecessor_oids):
            if not table.claim.any_source:
                return CopyFailed(
                    Failure(Remedy.PARK, "the target carries the position of another")
                )
        elif target is not None and target.oid == oid:
            if target.copy_number > table.copy_number:
                return CopySuperseded(target.copy_number)
            if (target.copy_number, target.position) >= (table.copy_number, position):
                return None
        self.commit_target(table.name, Target(oid, table.copy_number, position, list(changes)))
        return None

    def target(self, name: str) -> Target | None:
        return self.versions[name][-1] if name in self.versions else None

    def version(self, name: str) -> int:
        return len(self.versions[name]) - 1

    def commit_target(self, name: str, target: Target) -> None:
        self.versions.setdefault(name, []).append(target)

    def waiting(self, oid: int, table: TableRecord, end: int, after: int) -> list[Change]:
        return [
            change
            for source in self.history(oid)
            for change in source.changes
            if change.is_streamed and max(after, self.floor) < change.position <= end
        ]

    def history(self, oid: int) -> list[SourceTable]:
        return [source for source in self.sources if source.oid == oid]

    @rule(outcome=OUTCOMES, back=st.integers(0, 2))
    def batch(self, outcome: str, back: int) -> None:
        end = max(self.clock - back, int(self.tables.position))
        record = self.tables.record
        events = {}
        for oid, table in record.tables.items():
            if table.is_active and self.waiting(oid, table, end, int(table.applied_through)):
                if outcome in tuple(Remedy):
                    events[oid] = BatchFailed(Failure(Remedy(outcome), "why"), 0.0)
                else:
                    events[oid] = self.apply(oid, table, end)
        if outcome == "crash":
            self.restart()
            return
        with self.tables.changing():
            for oid, event in events.items():
                self.tables.apply(oid, event)
            self.tables.advance(Lsn(end))
            position = int(self.tables.position)
            for oid, table in self.tables.record.tables.items():
                after = int(table.applied_through)
                if table.is_active and not self.waiting(oid, table, position, after):
                    self.tables.apply(oid, CaughtUp(Lsn(position)))

    def apply(self, oid: int, table: TableRecord, end: int) -> Any:
        target = self.target(table.name)
        if target is None or target.oid != oid or target.copy_number != table.copy_number:
            return BatchFailed(Failure(Remedy.PARK, "the target is another's"), 0.0)
        after = max(int(table.applied_through), target.position)
        changes = self.waiting(oid, table, end, after)
        position = max([target.position, *(change.position for change in changes)])
        if changes:
            changed = replace(target, position=position, changes=[*target.changes, *changes])
            self.commit_target(table.name, changed)
        return BatchApplied(Lsn(end), TaskResult(Lsn(position), self.version(table.name)))

    # What always holds

    @invariant()
    def nothing_is_applied_twice_or_lost(self) -> None:
        for oid, table in self.tables.record.tables.items():
            if not table.is_active:
                continue
            target = self.target(table.name)
            assert target is not None
            assert target.oid == oid
            assert target.position >= table.committed
            positions = [change.position for change in target.changes]
            assert len(positions) == len(set(positions)), "applied twice"
            for source in self.history(oid):
                expected = {
                    change.position
                    for change in source.changes
                    if change.position <= table.applied_through
                    and (change.is_streamed or change.position <= source.looked_at)
                    and (source.is_sent or change.is_streamed)
                }
                assert expected <= set(positions), "lost"

    @invariant()
    def a_target_has_one_table(self) -> None:
        """Copies to one target run side by side: not even two may wait for one."""
        using = [t.title for t in self.tables.record.tables.values() if not t.is_parked]
        assert len(using) == len(set(using))

    @invariant()
    def a_parked_table_has_a_reason(self) -> None:
        assert all(t.error for t in self.tables.record.tables.values() if t.is_parked)

    @invariant()
    def a_table_has_only_what_its_state_uses(self) -> None:
        record = self.tables.record
        for table in (*record.tables.values(), *record.unpublished.values()):
            assert table == table.in_state(table.state)

    @invariant()
    def a_copy_that_was_asked_for_is_made(self) -> None:
        for oid in list(self.asked):
            table = self.tables.record.tables.get(oid)
            if table is None or table.is_parked:
                self.asked.remove(oid)
            elif table.is_active:
                target = self.target(table.name)
                assert target is not None
                assert target.copy_number == table.copy_number
                assert not table.claim.any_source
                self.asked.remove(oid)
            else:
                assert table.claim.any_source

    @invariant()
    def positions_only_rise(self) -> None:
        assert self.tables.position >= self.position
        self.position = self.tables.position
        for versions in self.versions.values():
            for before, after in itertools.pairwise(versions):
                if (before.oid, before.copy_number) == (after.oid, after.copy_number):
                    assert before.position <= after.position

    @invariant()
    def what_is_known_is_durable(self) -> None:
        assert self.store.record == self.tables.record


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(300), stateful_step_count=50)
