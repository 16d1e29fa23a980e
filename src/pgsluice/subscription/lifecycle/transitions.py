"""The life of a table in a subscription: which event leads from which state to which.

States are PostgreSQL's relation states, and two more::

    i  waits for a copy            f  copied, and not yet at the subscription's position
    d  is being copied             r  applied up to the subscription's position
    p  parked, with a reason       u  not published any more; its target stays as it is

:data:`TRANSITIONS` is all there is: state and event lead to the next state and its effects. A
pair that is not in it cannot happen, and is refused. In words:

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

This module is pure. :mod:`pgsluice.subscription.lifecycle.table_events` and its neighbours say
which facts come with an event and which fields of the record they change;
:mod:`pgsluice.subscription.lifecycle.tables` makes the result durable and carries out the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from pgsluice.spool import TableRecord, TableState


class Event(StrEnum):
    """What happens to a table."""

    DISCOVERED = "discovered"
    DISCOVERED_WITHOUT_COPY = "discovered, with copy_data = false"
    TARGET_TAKEN = "another table has its target"
    TARGET_FREED = "no other table has its target any more"
    NAME_CHANGED = "renamed: nothing is at its old target"
    RENAMED_WITH_TARGET = "renamed: copy its old target"
    RENAMED_WITHOUT_TARGET = "renamed: copy again"
    NOT_SENT = "not sent by the server any more"
    UNPUBLISHED = "unpublished"
    """Publications of pgsluice take it out, or there are none of pgsluice any more."""
    PUBLISHED_AGAIN = "published again"
    COPY_REQUESTED = "copy requested"
    HOLD_RELEASED = "hold released"
    """The spool does not hold its changes any more."""
    TIMELINE_LEFT = "timeline left"
    """It was copied past the point where a standby was promoted: it has rows that the new primary
    never had, and its position hides what the new primary committed at such positions."""
    LOOK_SAME = "look: same rows"
    LOOK_COLUMNS = "look: columns were added"
    LOOK_LEAVES = "look: load partitions"
    """Partitions came with rows, and the stream tells all else."""
    LOOK_ASIDE = "look: more partitions"
    """While some are replaced, others came: the next look needs to know of them."""
    LOOK_COPY = "look: copy again"
    """The look found what the stream does not tell."""
    LOOK_VERIFY = "look: verify"
    ASSESSED = "look: what its target does not get"
    VERIFIED_EQUAL = "verified: equal"
    VERIFIED_COPY = "verified: copy again"
    """Its target differs from the source, or cannot be compared."""
    REASON_ENDED = "look: the reason to park it has ended"
    OLD_TARGET_COPIED = "old target copied"
    OLD_TARGET_UNUSABLE = "old target cannot be copied"
    COPY_BEGUN = "copy begun"
    COPY_PLANNED = "copy planned"
    COPY_WAITS = "copy waits"
    """For a lock, or for transactions that are open."""
    COPY_FINISHED = "copy finished"
    LEAVES_APPLIED = "changes applied beside partitions"
    LEAVES_LOADED = "partitions loaded"
    LEAVES_MORE = "more partitions to replace"
    LEAVES_AWAIT_LOOK = "partitions wait for a look"
    LEAVES_GIVEN_UP = "partitions cannot be loaded alone"
    COPY_SUPERSEDED = "copy skipped, since the target has a later one"
    COPY_FAILED_PARK = "copy failed: park"
    COPY_FAILED_RETRY = "copy failed: retry"
    COPY_FAILED_LAST = "copy failed: retry, after the last attempt"
    COPY_FAILED_WAIT = "copy failed: wait"
    COPY_FAILED_LATER = "copy failed: later"
    """Something keeps it from being read: it is begun again later, and holds nothing until then."""
    COPY_FAILED_STOP = "copy failed: stop"
    BATCH_APPLIED = "batch applied"
    BATCH_FAILED_PARK = "batch failed: park"
    BATCH_FAILED_COPY = "batch failed: copy"
    BATCH_FAILED_LEAVES = "batch failed: replace partitions"
    BATCH_FAILED_RETRY = "batch failed: retry"
    BATCH_FAILED_LAST = "batch failed: retry, after the last attempt"
    BATCH_FAILED_LOOK = "batch failed: look"
    BATCH_FAILED_LAST_LOOK = "batch failed: look, after the last look"
    BATCH_FAILED_WAIT = "batch failed: wait"
    BATCH_FAILED_STOP = "batch failed: stop"
    CAUGHT_UP = "caught up"
    TIME_PASSED = "time passed"


class Effect(StrEnum):
    """What has to follow a transition, besides reporting a change of state or error."""

    LOOK = "look at the catalog"
    STOP = "stop the subscription"


_I, _D, _F = TableState.INITIALISE, TableState.DATA_COPY, TableState.COPIED
_R, _P, _U = TableState.READY, TableState.PARKED, TableState.UNPUBLISHED

Step = tuple[TableState, Effect | None]
IGNORED = None
"""The event is legal and changes nothing."""

_FOR_ALL: Mapping[Event, Step | None] = {
    Event.NOT_SENT: (_U, None),
    Event.UNPUBLISHED: (_U, None),
    Event.COPY_REQUESTED: (_I, None),
    Event.HOLD_RELEASED: (_I, None),
}
_IGNORED_UNLESS_ACTIVE: Mapping[Event, Step | None] = dict.fromkeys(
    [
        Event.PUBLISHED_AGAIN,
        Event.TIMELINE_LEFT,
        Event.LOOK_SAME,
        Event.LOOK_COLUMNS,
        Event.LOOK_LEAVES,
        Event.LOOK_ASIDE,
        Event.LOOK_COPY,
        Event.LOOK_VERIFY,
        Event.VERIFIED_EQUAL,
        Event.VERIFIED_COPY,
        Event.TIME_PASSED,
        *(event for event in Event if event.name.startswith("BATCH_")),
    ],
    IGNORED,
)


def _active(state: TableState) -> Mapping[Event, Step | None]:
    return {
        **_FOR_ALL,
        Event.ASSESSED: (state, None),
        Event.NAME_CHANGED: (state, None),
        Event.RENAMED_WITH_TARGET: (_D, None),
        Event.RENAMED_WITHOUT_TARGET: (_I, None),
        Event.NOT_SENT: (state, None),
        Event.PUBLISHED_AGAIN: (_I, None),
        Event.TIMELINE_LEFT: (_I, None),
        Event.LOOK_SAME: (state, None),
        Event.LOOK_COLUMNS: (state, None),
        Event.LOOK_LEAVES: (_D, None),
        Event.LOOK_COPY: (_I, None),
        Event.LOOK_VERIFY: (state, None),
        Event.VERIFIED_EQUAL: (state, None),
        Event.VERIFIED_COPY: (_I, None),
        Event.BATCH_APPLIED: (state, None),
        Event.BATCH_FAILED_PARK: (_P, None),
        Event.BATCH_FAILED_COPY: (_I, None),
        Event.BATCH_FAILED_LEAVES: (_D, None),
        Event.BATCH_FAILED_RETRY: (state, None),
        Event.BATCH_FAILED_LAST: (_P, None),
        Event.BATCH_FAILED_LOOK: (state, Effect.LOOK),
        # The partition was dropped: its changes can no longer be attributed to a table.
        Event.BATCH_FAILED_LAST_LOOK: (_I, Effect.LOOK),
        Event.BATCH_FAILED_WAIT: (state, None),
        Event.BATCH_FAILED_STOP: (state, Effect.STOP),
        Event.CAUGHT_UP: (_R, None),
        Event.TIME_PASSED: (state, None),
    }


TRANSITIONS: Mapping[TableState | None, Mapping[Event, Step | None]] = MappingProxyType(
    {
        None: {  # not known to the subscription
            Event.DISCOVERED: (_I, None),
            Event.DISCOVERED_WITHOUT_COPY: (_R, None),
            Event.TARGET_TAKEN: (_P, None),
        },
        _U: {
            Event.PUBLISHED_AGAIN: (_I, None),
            Event.TARGET_TAKEN: (_P, None),
            Event.NAME_CHANGED: (_U, None),
            **{event: IGNORED for event in Event if event.name.startswith(("BATCH_", "VERIFIED_"))},
        },
        _I: {
            **_FOR_ALL,
            **_IGNORED_UNLESS_ACTIVE,
            Event.ASSESSED: (_I, None),
            Event.NAME_CHANGED: (_I, None),
            Event.COPY_BEGUN: (_D, None),
            Event.COPY_WAITS: (_I, None),
        },
        _D: {
            **_FOR_ALL,
            **_IGNORED_UNLESS_ACTIVE,
            Event.ASSESSED: (_D, None),
            Event.NAME_CHANGED: (_D, None),
            Event.RENAMED_WITH_TARGET: (_D, None),  # again, before its rows were copied
            Event.RENAMED_WITHOUT_TARGET: (_I, None),  # while only partitions were to be replaced
            Event.OLD_TARGET_COPIED: (_F, Effect.LOOK),
            Event.OLD_TARGET_UNUSABLE: (_I, None),
            Event.LOOK_ASIDE: (_D, None),
            Event.COPY_BEGUN: (_D, None),  # again: the attempt before failed or was cut off
            Event.COPY_PLANNED: (_D, None),
            Event.COPY_WAITS: (_D, None),
            Event.COPY_FINISHED: (_F, None),
            Event.LEAVES_APPLIED: (_D, None),
            Event.LEAVES_LOADED: (_F, None),
            Event.LEAVES_MORE: (_D, None),
            Event.LEAVES_AWAIT_LOOK: (_D, Effect.LOOK),
            Event.LEAVES_GIVEN_UP: (_I, None),
            Event.COPY_SUPERSEDED: (_D, None),
            Event.COPY_FAILED_PARK: (_P, None),
            Event.COPY_FAILED_RETRY: (_D, None),
            Event.COPY_FAILED_LAST: (_P, None),
            Event.COPY_FAILED_WAIT: (_D, None),
            Event.COPY_FAILED_LATER: (_I, None),
            Event.COPY_FAILED_STOP: (_D, Effect.STOP),
        },
        _F: _active(_F),
        _R: _active(_R),
        _P: {
            **_FOR_ALL,
            **_IGNORED_UNLESS_ACTIVE,
            Event.TARGET_TAKEN: (_P, None),
            Event.REASON_ENDED: (_I, None),
            Event.TARGET_FREED: (_I, None),
            Event.ASSESSED: (_P, None),
            Event.NAME_CHANGED: (_P, None),
        },
    }
)
"""State, event -> next state and effect, or :data:`IGNORED`. What is not here is impossible."""


_WHY_COPIED: Mapping[Event, str] = MappingProxyType(
    {
        Event.TARGET_FREED: "another table had its target",
        Event.RENAMED_WITH_TARGET: "it was renamed",
        Event.RENAMED_WITHOUT_TARGET: "it was renamed",
        Event.PUBLISHED_AGAIN: "it was not sent for a while",
        Event.COPY_REQUESTED: "a user asked for it",
        Event.HOLD_RELEASED: "the spool does not have its changes any more",
        Event.TIMELINE_LEFT: "it has rows that the promoted server never had",
        Event.LOOK_LEAVES: "partitions came with rows, or went with theirs",
        Event.VERIFIED_COPY: "its target differs from the source, or could not be compared",
        Event.REASON_ENDED: "the reason to park it has ended",
        Event.OLD_TARGET_UNUSABLE: "it was renamed, and its old target cannot be copied",
        Event.LEAVES_GIVEN_UP: "rows of its partitions cannot be replaced alone",
    }
)
"""Why a table is copied again. Other events that lead to a copy have words of their own."""


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
        effect: what has to follow once the record is durable.
    """

    table: TableRecord
    attempts: Attempts = Attempts()
    effect: Effect | None = None


def uses_target(state: TableState | None) -> bool:
    """Whether a table in this state is applied to its target, or is about to be copied to it."""
    return state in (_I, _D, _F, _R)


class EventWithFacts(Protocol):
    """An event and its facts: see :mod:`pgsluice.subscription.lifecycle.table_events`."""

    def kind(self, attempts: Attempts) -> Event:
        """Which event of :data:`TRANSITIONS` it is, given the failures before it."""

    def change(self, table: TableRecord, attempts: Attempts) -> TableRecord:
        """The record with what the facts change; its state is still the one before."""


TableEvent = Event | EventWithFacts
"""An event without facts stands for itself, and clears what an error left."""


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
    kind = event if isinstance(event, Event) else event.kind(attempts)
    try:
        step = TRANSITIONS[state][kind]
    except KeyError as error:
        raise ImpossibleEventError(
            f"{table.namespace}.{table.name}: {kind!s} in state {state}"
        ) from error
    if step is None:
        return Transition(table, attempts)
    next_, effect = step
    if isinstance(event, Event):
        changed = replace(table, state=next_, error=None, deferred=False)
    else:
        changed = event.change(table, attempts)
        if changed.state is not next_:  # most events are those of thousands of tables at rest
            changed = replace(changed, state=next_)
    if (why := _WHY_COPIED.get(kind)) is not None and next_ in (_I, _D):
        changed = replace(changed, copy_reason=why)
    if next_ is not _D and (changed.load_leaves or changed.gone_bounds):
        changed = replace(changed, load_leaves=(), gone_bounds=(), gone_leaves=())
    if next_ is not state or kind is Event.BATCH_APPLIED:
        attempts = Attempts()
    elif kind in (Event.BATCH_FAILED_RETRY, Event.COPY_FAILED_RETRY):
        attempts = replace(attempts, failures=attempts.failures + 1)
    elif kind in (Event.BATCH_FAILED_LOOK, Event.LEAVES_AWAIT_LOOK):
        attempts = replace(attempts, awaits_look=True)
    return Transition(changed, attempts, effect)
