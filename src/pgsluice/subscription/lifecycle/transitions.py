"""The life of a table in a subscription: which event leads from which state to which.

States are PostgreSQL's relation states, and two more::

    i  waits for a copy            f  copied, and not yet at the subscription's position
    d  is being copied             r  applied up to the subscription's position
    p  parked, with a reason       u  not published any more; its target stays as it is

:data:`TRANSITIONS` has a row for each event: its next state for each state before it. A combination
without an entry is impossible and is refused. :data:`EFFECTS` has what else follows. Events of
different causes with the same effect are one event. The rules:

- Only replicating tables (``f``, ``r``) get changes. A batch's result for any other table is
  ignored, because its plan was out of date.
- A copy goes through ``i``, ``d``, ``f``. ``d`` is durable before the snapshot is taken, so that
  the spool keeps the changes after the snapshot, and a copy that a crash interrupted restarts.
- A renamed table goes through ``d``, ``f``, too: its rows are copied from its previous target. In
  ``d`` the spool keeps the later changes. If that is impossible, it is copied from the source.
- If only partitions with rows were attached, their rows are loaded in ``d``, ``f``: the changes up
  to the snapshot's position are applied, and one more commit replaces the partitions' rows. In
  ``d`` the spool keeps the changes after the target's position. If that is impossible, the whole
  table is copied. A batch that fails because of changed partitions leads to the same steps.
- A user can request a copy in every state except ``u``. It may replace a target with another
  source's position, but not a target that another table of the subscription uses.
- A table whose changes the spool no longer has is copied, even if it is parked.
- A suspicious table keeps replicating and is marked for verification. The mark ends with a
  verification that began after it, or with a copy.
- A parked table stays parked until it is copied or unpublished. It always has a reason. If a
  catalog refresh finds that the reason has ended, the table is copied, because changes may be
  missing.
- A table that the server no longer sends becomes unpublished. A replicating one first gets the
  changes that were sent before.
- Catalog refreshes compare replicating tables only: before a copy there is no baseline. While
  partitions are replaced, refreshes only record which others were added, in case these are removed
  again. For a parked table, they only check whether its reason has ended.
- Only failures in a row count towards parking: an applied batch, and every change of state, reset
  the count.
- A change of state drops data that the new state does not use
  (:meth:`pgsluice.spool.TableRecord.in_state`), such as a mark for verification, a deferred merge,
  or a reason for parking.

This module has no side effects. :mod:`pgsluice.subscription.lifecycle.table_events` and its
neighbours have the data of events, and how they change the record.
:mod:`pgsluice.subscription.lifecycle.tables` makes the result durable and carries out the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Protocol

from pgsluice.spool import TableRecord, TableState


class Event(StrEnum):
    """The events of a table, one for each different effect."""

    DISCOVERED = "discovered"
    DISCOVERED_WITHOUT_COPY = "discovered, with copy_data = false"
    TARGET_TAKEN = "another table has its target"
    REASON_ENDED = "the reason to park it has ended"
    DESCRIBED = "its name, or what its target does not get"
    RENAMED_WITH_TARGET = "renamed: copy its old target"
    RENAMED_WITHOUT_TARGET = "renamed: copy again"
    NOT_SENT = "not sent by the server any more"
    UNPUBLISHED = "unpublished"
    """pgsluice's own publications exclude it, or there are no own publications any more."""
    PUBLISHED_AGAIN = "published again"
    COPY_DEMANDED = "copy demanded"
    """A user requested it, or the spool no longer has the table's changes."""
    COPY_NEEDED = "copy needed"
    """The target lacks changes that the stream does not carry."""
    PARTITIONS_NEEDED = "copy of partitions needed"
    UPDATED = "updated"
    """It keeps replicating; the data of its record changes."""
    LOOK_ASIDE = "look: more partitions"
    """Partitions were added while others are replaced: the next catalog refresh needs to know
    them."""
    COPY_BEGUN = "copy begun"
    COPY_WAITS = "copy waits"
    """The copy waits for a lock, or for open transactions."""
    COPY_UPDATED = "copy updated"
    """The copy continues or restarts; the data of its record changes."""
    COPY_FINISHED = "copy finished"
    OLD_TARGET_COPIED = "old target copied"
    COPY_ABANDONED = "copy abandoned"
    """The whole table is copied later; until then it pins nothing in the spool."""
    COPY_RETRIED = "copy retried"
    COPY_AWAITS_LOOK = "copy waits for a catalog refresh"
    COPY_PARKED = "copy failed: parked"
    COPY_STOPPED = "copy failed: stop"
    BATCH_APPLIED = "batch applied"
    BATCH_RETRIED = "batch retried"
    BATCH_AWAITS_LOOK = "batch waits for a catalog refresh"
    LOOKS_WERE_IN_VAIN = "batch failed after the last catalog refresh: copy"
    """The partition was dropped: its changes can no longer be attributed to a table."""
    BATCH_PARKED = "batch failed: parked"
    BATCH_STOPPED = "batch failed: stop"
    CAUGHT_UP = "caught up"


class Effect(StrEnum):
    """What follows a transition, in addition to the report of a new state or error."""

    LOOK = "refresh the catalog"
    STOP = "stop the subscription"
    UNDO_LOOKS = "catalog refreshes count only up to the copy's snapshot"
    """Later catalog refreshes have not compared the table. A batch that fails because a refresh is
    missing is not to blame for that: no table is copied or parked before further refreshes did not
    help."""
    COUNT_FAILURE = "count a failure"
    COUNT_LOOK = "count the next catalog refresh"
    FORGET_FAILURES = "begin the count of failures again"


class _Cell(Enum):
    IMPOSSIBLE = auto()
    IGNORED = auto()


_I, _D, _F = TableState.INITIALISE, TableState.DATA_COPY, TableState.COPIED
_R, _P, _U = TableState.READY, TableState.PARKED, TableState.UNPUBLISHED
__, no = _Cell.IMPOSSIBLE, _Cell.IGNORED

_STATES = (None, _U, _I, _D, _F, _R, _P)
TRANSITIONS: Mapping[Event, tuple[TableState | _Cell, ...]] = MappingProxyType(
    {
        # from:                     new u   i   d   f   r   p
        Event.DISCOVERED:              (_I, __, __, __, __, __, __),
        Event.DISCOVERED_WITHOUT_COPY: (_R, __, __, __, __, __, __),
        Event.TARGET_TAKEN:            (_P, _P, __, __, __, __, _P),
        Event.REASON_ENDED:            (__, __, __, __, __, __, _I),
        Event.DESCRIBED:               (__, _U, _I, _D, _F, _R, _P),
        Event.RENAMED_WITH_TARGET:     (__, __, __, _D, _D, _D, __),
        Event.RENAMED_WITHOUT_TARGET:  (__, __, __, _I, _I, _I, __),
        Event.NOT_SENT:                (__, __, _U, _U, _F, _R, _U),
        Event.UNPUBLISHED:             (__, __, _U, _U, _U, _U, _U),
        Event.PUBLISHED_AGAIN:         (__, _I, no, no, _I, _I, no),
        Event.COPY_DEMANDED:           (__, __, _I, _I, _I, _I, _I),
        Event.COPY_NEEDED:             (__, no, no, no, _I, _I, no),
        Event.PARTITIONS_NEEDED:       (__, no, no, no, _D, _D, no),
        Event.UPDATED:                 (__, no, no, no, _F, _R, no),
        Event.LOOK_ASIDE:              (__, __, no, _D, __, __, no),
        Event.COPY_BEGUN:              (__, __, _D, _D, __, __, __),
        Event.COPY_WAITS:              (__, __, _I, _D, __, __, __),
        Event.COPY_UPDATED:            (__, __, __, _D, __, __, __),
        Event.COPY_FINISHED:           (__, __, __, _F, __, __, __),
        Event.OLD_TARGET_COPIED:       (__, __, __, _F, __, __, __),
        Event.COPY_ABANDONED:          (__, __, __, _I, __, __, __),
        Event.COPY_RETRIED:            (__, __, __, _D, __, __, __),
        Event.COPY_AWAITS_LOOK:        (__, __, __, _D, __, __, __),
        Event.COPY_PARKED:             (__, __, __, _P, __, __, __),
        Event.COPY_STOPPED:            (__, __, __, _D, __, __, __),
        Event.BATCH_APPLIED:           (__, no, no, no, _F, _R, no),
        Event.BATCH_RETRIED:           (__, no, no, no, _F, _R, no),
        Event.BATCH_AWAITS_LOOK:       (__, no, no, no, _F, _R, no),
        Event.LOOKS_WERE_IN_VAIN:      (__, no, no, no, _I, _I, no),
        Event.BATCH_PARKED:            (__, no, no, no, _P, _P, no),
        Event.BATCH_STOPPED:           (__, no, no, no, _F, _R, no),
        Event.CAUGHT_UP:               (__, __, __, __, _R, _R, __),
    }
)  # fmt: skip
"""Event -> next state, by the state before. ``no``: the event is legal and changes nothing."""

EFFECTS: Mapping[Event, tuple[Effect, ...]] = MappingProxyType(
    {
        Event.COPY_FINISHED: (Effect.UNDO_LOOKS,),
        Event.OLD_TARGET_COPIED: (Effect.LOOK,),
        Event.COPY_RETRIED: (Effect.COUNT_FAILURE,),
        Event.COPY_AWAITS_LOOK: (Effect.COUNT_LOOK, Effect.LOOK),
        Event.COPY_STOPPED: (Effect.STOP,),
        Event.BATCH_APPLIED: (Effect.FORGET_FAILURES,),
        Event.BATCH_RETRIED: (Effect.COUNT_FAILURE,),
        Event.BATCH_AWAITS_LOOK: (Effect.COUNT_LOOK, Effect.LOOK),
        Event.LOOKS_WERE_IN_VAIN: (Effect.LOOK,),
        Event.BATCH_STOPPED: (Effect.STOP,),
    }
)
"""The effects of an event in each state that does not ignore it. :attr:`Effect.LOOK` also follows
if the stream has shown leaf partitions of a replicating table that no catalog refresh has found."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """A table's consecutive failures; lost when the process ends.

    Attributes:
        failures: consecutive failures of the same work.
        looks: catalog refreshes that did not find what a batch needs.
        awaits_look: a batch has failed since the last catalog refresh.
    """

    failures: int = 0
    looks: int = 0
    awaits_look: bool = False

    def after_look(self) -> Attempts:
        """The count after a catalog refresh. All failures between two refreshes count as one."""
        return replace(self, looks=self.looks + 1, awaits_look=False) if self.awaits_look else self


@dataclass(frozen=True, slots=True)
class Transition:
    """The outcome of an event."""

    table: TableRecord
    attempts: Attempts = Attempts()
    effects: tuple[Effect, ...] = ()


def uses_target(state: TableState | None) -> bool:
    """Whether a table in this state uses its target: it gets changes there, or a copy is about to
    write it."""
    return state in (_I, _D, _F, _R)


class TableEvent(Protocol):
    """An event with its data: see :mod:`pgsluice.subscription.lifecycle.table_events`."""

    @property
    def why(self) -> str:
        """Why this event leads to a copy of the table, as text for the user."""

    def kind(self, attempts: Attempts) -> Event:
        """Its event in :data:`TRANSITIONS`, given the failures before it."""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        """The record with the changed data; its state is still the previous one."""


class ImpossibleEventError(Exception):
    """An event is impossible in a table's state: a bug in pgsluice."""


def next_state(
    state: TableState | None, table: TableRecord, attempts: Attempts, event: TableEvent
) -> Transition:
    """The next state of a table, its new record, and the effects of an event.

    Args:
        state: the table's state; None: the subscription does not know the table yet.
        table: its record; for an unknown table, its initial record.

    Raises:
        ImpossibleEventError: the event is impossible in this state.
    """
    kind = event.kind(attempts)
    next_ = TRANSITIONS[kind][_STATES.index(state)]
    if next_ is no:
        return Transition(table, attempts)
    if not isinstance(next_, TableState):
        raise ImpossibleEventError(f"{table.namespace}.{table.name}: {kind!s} in state {state}")
    changed = event.change(table, attempts)
    if next_ in (_I, _D) and event.why and (next_ is _I or state is not _D):
        changed = replace(changed, copied=replace(changed.copied, reason=event.why))
    if next_ is not state or next_ is _D:  # most events are those of thousands of tables at rest
        changed = changed.in_state(next_)
    effects = EFFECTS.get(kind, ())
    if next_ is not state or Effect.FORGET_FAILURES in effects:
        attempts = Attempts()
    elif Effect.COUNT_FAILURE in effects:
        attempts = replace(attempts, failures=attempts.failures + 1)
    elif Effect.COUNT_LOOK in effects:
        attempts = replace(attempts, awaits_look=True)
    if _has_unseen(state, table, changed):
        effects = (*effects, Effect.LOOK)
    return Transition(changed, attempts, effects)


def _has_unseen(state: TableState | None, before: TableRecord, table: TableRecord) -> bool:
    """Whether the stream has shown leaf partitions that a catalog refresh has to handle now."""
    unseen = table.pending.unseen_leaves
    if not unseen or not table.is_active:
        return False
    return state not in (_F, _R) or before.pending.unseen_leaves != unseen
