"""The tables of an active subscription: the only owner of its record, the record's lock, and its
failures.

Nothing else changes a subscription's record. Events go through
:func:`pgsluice.subscription.lifecycle.transitions.next_state`. A block of :meth:`changing` makes
all of its changes durable in one write at its end, or none: after an error, the record is that of
the file again. Only durable changes are reported or acted on.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pgsluice.errors import SinkError
from pgsluice.events import MetricsEvent, TableStateChanged
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    Cut,
    FormerTarget,
    RecordStore,
    SubscriptionRecord,
    TableRecord,
    TableState,
    TargetName,
)
from pgsluice.subscription.lifecycle.look_events import Renamed, TargetTaken
from pgsluice.subscription.lifecycle.table_events import CopyRequested, RepairNeeded
from pgsluice.subscription.lifecycle.transitions import (
    Attempts,
    Effect,
    TableEvent,
    Transition,
    next_state,
    uses_target,
)

_NO_ATTEMPTS = Attempts()


class SubscriptionTables:
    """A subscription's record in memory, and the lock that protects every change of it.

    Args:
        store: has the durable record; from now on nothing else may write it.

    Attributes:
        lock: held while tables are changed, and while tasks run that plan from the record.
        needs_look: a table waits for a catalog refresh.
    """

    def __init__(self, store: RecordStore, report: Callable[[MetricsEvent], None]) -> None:
        self.lock = threading.RLock()
        self.needs_look = False
        self._store = store
        self._report = report
        self._failure: SinkError | None = None
        self._attempts: dict[int, Attempts] = {}
        self._is_changing = False
        self._effects: list[Transition] = []
        self._touched: dict[int, TableRecord | None] = {}
        self._left: dict[TargetName, FormerTarget] = {}
        self._unfinished: tuple[SubscriptionRecord | None, Mapping[int, TableRecord]] = (None, {})
        self._load()

    def _load(self) -> None:
        record = self._store.record
        self._record: SubscriptionRecord | None = record
        self._base = record
        self._tables = dict(record.tables)
        self._unpublished = dict(record.unpublished)
        self._oids_by_name: defaultdict[TargetName, set[int]] = defaultdict(set)
        for oid, table in {**record.tables, **record.unpublished}.items():
            self._oids_by_name[table.target_name].add(oid)

    @property
    def record(self) -> SubscriptionRecord:
        """The current record; waits for a block of :meth:`changing` in another thread.

        Inside a block it may not be durable yet.
        """
        with self.lock:
            if self._record is None:
                self._record = replace(
                    self._base, tables=dict(self._tables), unpublished=dict(self._unpublished)
                )
            return self._record

    @property
    def durable(self) -> SubscriptionRecord:
        """The record as last written, for readers that do not hold the lock."""
        return self._store.record

    @property
    def is_streaming(self) -> bool:
        """Whether at least one table gets changes now."""
        return any(table.is_active for table in self.durable.tables.values())

    @property
    def position(self) -> Lsn:
        """The end of the last recorded batch."""
        return self._base.position

    @property
    def unfinished(self) -> Mapping[int, TableRecord]:
        """The tables of the durable record that need more than their next changes.

        This is called several times a second. It visits all tables only after a change of the
        record, so thousands of idle tables cost no more than one.
        """
        record, unfinished = self._unfinished
        if record is not self.durable:
            record = self.durable
            unfinished = {
                oid: table
                for oid, table in record.tables.items()
                if not _is_finished(table, record.position)
            }
            self._unfinished = record, unfinished
        return unfinished

    def get(self, oid: int) -> TableRecord | None:
        """The published table with this OID; None: the subscription has none."""
        return self._tables.get(oid)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make all changes of the block durable in one write at its end.

        Blocks can be nested: the outermost one writes. If the block raises, nothing changes.

        Raises:
            SpoolError: the record could not be written.
        """
        with self.lock:
            if self._is_changing:
                yield
                return
            attempts = dict(self._attempts)
            self._is_changing = True
            try:
                yield
                self._store.save(self.record)
            except BaseException:
                self._attempts = attempts
                self._load()
                self._effects, self._touched, self._left = [], {}, {}
                raise
            finally:
                self._is_changing = False
            self._carry_out()

    @contextmanager
    def looking(self) -> Iterator[bool]:
        """A context for one catalog refresh, from reading the catalog to applying its events.

        It yields whether a table needs the refresh. A table that starts to need one during the
        block, or any table if the block raises, needs another one.
        """
        was_needed, self.needs_look = self.needs_look, False
        try:
            yield was_needed
        except BaseException:
            self.needs_look = self.needs_look or was_needed
            raise

    def apply(self, oid: int, event: TableEvent) -> Transition:
        """Apply an event to a known table.

        Raises:
            KeyError: the subscription does not know the table.
            ImpossibleEventError: the event cannot happen in the table's state.
        """
        with self.changing():
            table = self._tables.get(oid) or self._unpublished[oid]
            return self._apply(oid, table.state, table, event)

    def apply_to_all(self, oids: Iterable[int], event: TableEvent) -> None:
        """Apply an event to published tables."""
        with self.changing():
            for oid in oids:
                table = self._tables[oid]
                self._apply(oid, table.state, table, event)

    def request_copy(self, oid: int, *, repairs: bool = False) -> None:
        """Request a copy of one table for a user; an unpublished table is ignored.

        Args:
            repairs: only what differs from the source has to be read again; for a replicating
                table.
        """
        with self.changing():
            if oid in self._tables:
                self.apply(oid, RepairNeeded() if repairs else CopyRequested())

    def discover(self, oid: int, table: TableRecord, event: TableEvent) -> Transition:
        """Apply the first event to a table that is new to the subscription; ``table`` is its
        initial record."""
        with self.changing():
            assert oid not in self._tables
            assert oid not in self._unpublished
            self._oids_by_name[table.target_name].add(oid)
            return self._apply(oid, None, table, event)

    def forget(self, oid: int) -> None:
        """Remove a table that is gone and whose target another table uses."""
        with self.changing():
            table = self._tables.get(oid) or self._unpublished[oid]
            self._oids_by_name[table.target_name].discard(oid)
            self._touched.setdefault(oid, self._tables.get(oid))
            self._tables.pop(oid, None)
            self._unpublished.pop(oid, None)
            self._attempts.pop(oid, None)
            self._record = None

    def rename(self, renamed: Mapping[int, Renamed]) -> None:
        """Rename tables, all at once: two tables may have swapped their names.

        Consistent checkpoints lose these tables, because their versions are those of the old
        targets.
        """
        with self.changing():
            for oid, event in renamed.items():
                table = self._tables.get(oid) or self._unpublished[oid]
                self._oids_by_name[table.target_name].discard(oid)
                self._oids_by_name[event.name].add(oid)
            for oid, event in renamed.items():
                self.apply(oid, event)
            if renamed:
                cut = self._base.cut and _without(self._base.cut, renamed)
                self._change(
                    cut=cut, cuts=tuple(_without(each, renamed) for each in self._base.cuts)
                )

    def keep_former(self, former: Mapping[TargetName, FormerTarget]) -> None:
        """Record the previous targets of renamed tables."""
        with self.changing():
            before = self._base.former
            if former == before:
                return
            self._left.update(
                {name: left for name, left in former.items() if before.get(name) != left}
            )
            self._change(former=former)

    def advance(self, position: Lsn) -> None:
        """Raise the subscription's position; a lower one is ignored."""
        with self.changing():
            if position > self._base.position:
                self._change(position=position)

    def keep_look(self, position: Lsn) -> None:
        """Record the position up to which a catalog refresh saw all commits."""
        self._attempts = {oid: each.after_look() for oid, each in self._attempts.items()}
        self._change(looked_through=position)

    def keep_cut(self, cut: Cut, older: tuple[Cut, ...]) -> None:
        """Record the newest consistent checkpoint, and the older ones that may still have
        readers."""
        self._change(cut=cut, cuts=older)

    def _change(self, **changed: Any) -> None:
        """Change fields of the record that no table has."""
        with self.changing():
            self._base, self._record = replace(self._base, **changed), None

    def raise_failure(self) -> None:
        """Raise the error that stopped the subscription, if there is one.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        if self._failure is not None:
            raise self._failure

    def report_parked(self) -> None:
        """Report the parked tables with their reasons at the start of a run, which does not resume
        them.

        It also reports tables whose targets do not get all changes.
        """
        for table in self.durable.tables.values():
            if table.is_parked or table.incomplete:
                self._report_state(table)

    def _apply(
        self, oid: int, state: TableState | None, table: TableRecord, event: TableEvent
    ) -> Transition:
        attempts = self._attempts.get(oid, _NO_ATTEMPTS)
        transition = next_state(state, table, attempts, event)
        begins_to_use = uses_target(transition.table.state) and not uses_target(state)
        if begins_to_use and self._is_target_taken(oid, transition.table.target_name):
            transition = next_state(state, table, attempts, TargetTaken())
        if transition.attempts != attempts:
            self._attempts[oid] = transition.attempts
        if transition.table is table and state is not None:
            return transition
        self._touched.setdefault(oid, None if state is None else table)
        is_unpublished = transition.table.state is TableState.UNPUBLISHED
        here, there = self._tables, self._unpublished
        if is_unpublished:
            here, there = there, here
        here[oid] = transition.table
        there.pop(oid, None)
        self._record = None
        if transition.effects:
            self._effects.append(transition)
            if Effect.UNDO_LOOKS in transition.effects:
                self._undo_looks(transition.table.applied_through)
        return transition

    def _undo_looks(self, position: Lsn) -> None:
        """The last catalog refresh counts only up to a copy's snapshot, until the next one."""
        if position < self._base.looked_through:
            self._change(looked_through=position)
            self._attempts = {oid: replace(each, looks=0) for oid, each in self._attempts.items()}

    def _is_target_taken(self, oid: int, name: TargetName) -> bool:
        others = self._oids_by_name[name] - {oid}
        return any(
            uses_target(table.state) for table in map(self._tables.get, others) if table is not None
        )

    def _carry_out(self) -> None:
        """Carry out what follows from durable changes; effects first: a report may raise."""
        touched, self._touched = self._touched, {}
        left, self._left = self._left, {}
        effects, self._effects = self._effects, []
        for transition in effects:
            if Effect.LOOK in transition.effects:
                self.needs_look = True
            if Effect.STOP in transition.effects:
                self._failure = SinkError.of_text(
                    transition.table.error or "the target cannot be used"
                )
        for oid, before in touched.items():
            table = self._tables.get(oid)
            if table is None:
                continue
            if _is_news(before, table):
                self._report_state(table)

        for (namespace, name), target in left.items():
            state = str(TableState.UNPUBLISHED)
            why = (target.why,) if target.why else ()
            self._report(TableStateChanged(self._base.name, namespace, name, state, incomplete=why))

    def _report_state(self, table: TableRecord) -> None:
        self._report(
            TableStateChanged(
                self._base.name,
                table.namespace,
                table.name,
                str(table.shown_state),
                table.error,
                table.incomplete,
                table.copy_words,
            )
        )


def _is_finished(table: TableRecord, position: Lsn) -> bool:
    """Whether a table needs nothing until changes, a catalog refresh or a request come."""
    if table.is_parked:
        return True
    is_level = table.state is TableState.READY and table.applied_through >= position
    pending = table.pending
    is_quiet = pending.due is None and pending.columns is None and not pending.verification
    return is_level and is_quiet


def _without(cut: Cut, oids: Collection[int]) -> Cut:
    versions = {oid: version for oid, version in cut.versions.items() if oid not in oids}
    return replace(cut, versions=versions)


def _is_news(before: TableRecord | None, table: TableRecord) -> bool:
    """Whether to report a change; a first copy reports its own start."""
    if table.is_to_copy and table.error is None and not table.copied.reason:
        return False
    return before is None or _shown(before) != _shown(table)


def _shown(table: TableRecord) -> tuple[object, ...]:
    return table.shown_state, table.error, table.incomplete, table.copy_words
