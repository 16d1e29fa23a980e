"""The life of a table in a subscription: which event leads from which state to which.

States are PostgreSQL's relation states, and two more::

    i  waits for a copy            f  copied, and not yet at the subscription's position
    d  is being copied             r  applied up to the subscription's position
    p  parked, with a reason       u  not published any more; its target stays as it is

:data:`TRANSITIONS` has each event's row: from which state it leads to which. What is not there
cannot happen, and is refused. :data:`EFFECTS` has what else follows. An event is named after its
effect: events of different causes and the same effect are one. In words:

- Changes are applied to active tables (``f``, ``r``) only. The result of a batch for any other
  table comes from a plan that is out of date, and is ignored.
- A copy goes ``i``, ``d``, ``f``. ``d`` is durable before the snapshot is taken, so that the
  spool keeps what follows the snapshot, and a copy that a crash cut off is begun again.
- A renamed table goes ``d``, ``f`` as well: its rows are copied from the target that it had. In
  ``d`` the spool keeps what follows them. Where that cannot be, it is copied from the source.
- Where only partitions came with rows, these are loaded in ``d``, ``f``: the target is brought to
  the snapshot's position, and the partitions' rows are one commit more. In ``d`` the spool keeps
  what follows the position that the target has. Where that cannot be, the table is copied. A batch
  that cannot be applied for what became of some partitions leads there, too.
- A user who asks for a copy gets one in every state but ``u``, and allows it to replace a target
  that carries another source's position; but not one that another table here is applied to.
- A table whose changes the spool no longer holds is copied, parked ones included.
- A table that is merely suspicious stays active and is marked to be verified. The mark ends with
  a verification that began after it, or with a copy.
- A parked table stays parked until it is copied or unpublished. It always has a reason; if a look
  finds that the reason has ended, the table is copied, since changes may be missing.
- A table that the server no longer sends is unpublished, but an active one stays active: what was
  sent before is applied.
- Looks at the catalog concern active tables: before a copy there is nothing to compare with. While
  partitions are replaced, looks only keep in mind which others came, in case these go again. A
  parked table is asked only whether its reason has ended.
- A failure counts towards parking only while it repeats: a batch that is applied, and every
  change of state, begin the count anew.
- A change of state drops what the new state does not use
  (:meth:`pgsluice.spool.TableRecord.in_state`): a mark to verify, a deferred merge and a reason to
  be parked end with the states that have them.

This module is pure. :mod:`pgsluice.subscription.lifecycle.table_events` and its neighbours have the
facts that come with an event, and what they change in the record's data;
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
    """What happens to a table, by its effect."""

    DISCOVERED = "discovered"
    DISCOVERED_WITHOUT_COPY = "discovered, with copy_data = false"
    TARGET_TAKEN = "another table has its target"
    REASON_ENDED = "the reason to park it has ended"
    DESCRIBED = "its name, or what its target does not get"
    RENAMED_WITH_TARGET = "renamed: copy its old target"
    RENAMED_WITHOUT_TARGET = "renamed: copy again"
    NOT_SENT = "not sent by the server any more"
    UNPUBLISHED = "unpublished"
    """Publications of pgsluice take it out, or there are none of pgsluice any more."""
    PUBLISHED_AGAIN = "published again"
    COPY_DEMANDED = "copy demanded"
    """By a user, or because the spool does not hold its changes any more."""
    COPY_NEEDED = "copy needed"
    """Its target lacks what the stream does not bring."""
    PARTITIONS_NEEDED = "copy of partitions needed"
    UPDATED = "updated"
    """It stays active, and its record has other data."""
    LOOK_ASIDE = "look: more partitions"
    """While some are replaced, others came: the next look needs to know of them."""
    COPY_BEGUN = "copy begun"
    COPY_WAITS = "copy waits"
    """For a lock, or for transactions that are open."""
    COPY_UPDATED = "copy updated"
    """It goes on, or begins again, and its record has other data."""
    COPY_FINISHED = "copy finished"
    OLD_TARGET_COPIED = "old target copied"
    COPY_ABANDONED = "copy abandoned"
    """The whole table is copied later; nothing is held until then."""
    COPY_RETRIED = "copy retried"
    COPY_AWAITS_LOOK = "copy waits for a look"
    COPY_PARKED = "copy failed: parked"
    COPY_STOPPED = "copy failed: stop"
    BATCH_APPLIED = "batch applied"
    BATCH_RETRIED = "batch retried"
    BATCH_AWAITS_LOOK = "batch waits for a look"
    LOOKS_WERE_IN_VAIN = "batch failed after the last look: copy"
    """The partition was dropped: its changes can no longer be attributed to a table."""
    BATCH_PARKED = "batch failed: parked"
    BATCH_STOPPED = "batch failed: stop"
    CAUGHT_UP = "caught up"


class Effect(StrEnum):
    """What has to follow a transition, besides reporting a change of state or error."""

    LOOK = "look at the catalog"
    STOP = "stop the subscription"
    UNDO_LOOKS = "looks count only up to the copy's snapshot"
    """Looks that were done since have not compared the table. A batch that fails for want of a look
    is not to blame for that: no table is copied or parked before other looks were in vain."""
    COUNT_FAILURE = "count a failure"
    COUNT_LOOK = "count the next look"
    FORGET_FAILURES = "begin the count of failures anew"


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
"""Event -> the next state, by the state before. ``no``: the event is legal and changes nothing."""

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
"""What follows an event in each state that does not ignore it. :attr:`Effect.LOOK` follows also
when the stream has brought leaves of an active table that no look has found."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """A table's consecutive failures; forgotten when the process ends.

    Attributes:
        failures: of the same work.
        looks: at the catalog that did not bring what a batch needs.
        awaits_look: a batch has failed since the last look.
    """

    failures: int = 0
    looks: int = 0
    awaits_look: bool = False

    def after_look(self) -> Attempts:
        """The count after a look at the catalog. What fails between two looks counts once."""
        return replace(self, looks=self.looks + 1, awaits_look=False) if self.awaits_look else self


@dataclass(frozen=True, slots=True)
class Transition:
    """What an event makes of a table.

    Attributes:
        attempts: its consecutive failures.
        effects: what has to follow.
    """

    table: TableRecord
    attempts: Attempts = Attempts()
    effects: tuple[Effect, ...] = ()


def uses_target(state: TableState | None) -> bool:
    """Whether a table in this state is applied to its target, or is about to be copied to it."""
    return state in (_I, _D, _F, _R)


class TableEvent(Protocol):
    """An event and its facts: see :mod:`pgsluice.subscription.lifecycle.table_events`."""

    @property
    def why(self) -> str:
        """Why a table is copied again that begins to wait for a copy by it, for people."""

    def kind(self, attempts: Attempts) -> Event:
        """Which event of :data:`TRANSITIONS` it is, given the failures before it."""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        """The record with what the facts change; its state is still the one before."""


class ImpossibleEventError(Exception):
    """An event cannot happen in a table's state: there is a fault in the program."""


def next_state(
    state: TableState | None, table: TableRecord, attempts: Attempts, event: TableEvent
) -> Transition:
    """What an event makes of a table.

    Args:
        state: the table's; None: the subscription does not know the table yet.
        table: its record; of a table that is not known, the one to begin with.
        attempts: its consecutive failures so far.

    Raises:
        ImpossibleEventError: the event cannot happen in this state.
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
    """Whether the stream has brought leaves that a look is to account for now."""
    unseen = table.pending.unseen_leaves
    if not unseen or not table.is_active:
        return False
    return state not in (_F, _R) or before.pending.unseen_leaves != unseen
