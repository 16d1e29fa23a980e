"""Every state with every event: what follows, what is ignored, and what cannot happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgsluice.errors import Failure, ParkReason, Remedy
from pgsluice.lsn import Lsn
from pgsluice.spool import OldTarget, TableRecord, TableState, UnseenLeaf
from pgsluice.subscription.base.work import TaskResult
from pgsluice.subscription.lifecycle.leaf_events import (
    LeavesApplied,
    LeavesFailed,
    LeavesLoaded,
    LookedAside,
    LookedLeaves,
)
from pgsluice.subscription.lifecycle.look_events import (
    Assessed,
    Discovered,
    LookedColumns,
    LookedCopy,
    LookedSame,
    LookedSuspicious,
    NotSent,
    PublishedAgain,
    ReasonEnded,
    VerifiedEqual,
)
from pgsluice.subscription.lifecycle.name_events import (
    OldTargetCopied,
    OldTargetUnusable,
    Renamed,
    TargetFreed,
    TargetTaken,
)
from pgsluice.subscription.lifecycle.table_events import (
    BATCH_ATTEMPTS,
    COPY_ATTEMPTS,
    LOOKS,
    BatchApplied,
    BatchFailed,
    CaughtUp,
    CopyBegun,
    CopyFailed,
    CopyFinished,
    CopyPlanned,
    CopyRequested,
    CopySuperseded,
    CopyWaits,
    HoldReleased,
    TimePassed,
)
from pgsluice.subscription.lifecycle.transitions import (
    TRANSITIONS,
    Attempts,
    Effect,
    Event,
    ImpossibleEventError,
    TableEvent,
    next_state,
)

NOW = 1000.0
OLD_TARGET = OldTarget("public", "t", 1, 0)
LAST = Attempts(failures=BATCH_ATTEMPTS - 1, looks=LOOKS)
NONE = Attempts()
ROWS = {7: ("id < 9",), 8: ("id < 9", "id > 20")}


def copy_failed(remedy: Remedy) -> CopyFailed:
    return CopyFailed(Failure(remedy, "why"))


def leaves_failed(remedy: Remedy, **more: Any) -> LeavesFailed:
    return LeavesFailed(Failure(remedy, "why"), **more)


def batch_failed(remedy: Remedy, **more: Any) -> BatchFailed:
    return BatchFailed(Failure(remedy, "why"), NOW, **more)


# For each event: one of its kind, the failures before it, and what it makes of a table that is
# unknown, unpublished, i, d, f, r and p. "." is ignored, "-" is impossible; "L" (look) and "S"
# (stop) are the effects.
EXPECTED: list[tuple[Event, TableEvent, Attempts, str]] = [
    (Event.DISCOVERED, Discovered(), NONE, "i - - - - - -"),
    (Event.DISCOVERED_WITHOUT_COPY, Discovered(copy_data=False), NONE, "r - - - - - -"),
    (Event.TARGET_TAKEN, TargetTaken(), NONE, "p p - - - - p"),
    (Event.TARGET_FREED, TargetFreed((3,)), NONE, "- - - - - - i"),
    (Event.NAME_CHANGED, Renamed(("s", "n"), keeps_state=True), NONE, "- u i d f r p"),
    (
        Event.RENAMED_WITH_TARGET,
        Renamed(("s", "n"), old_target=OLD_TARGET),
        NONE,
        "- - - d d d -",
    ),
    (Event.RENAMED_WITHOUT_TARGET, Renamed(("s", "n")), NONE, "- - - i i i -"),
    (Event.NOT_SENT, NotSent(), NONE, "- - u u f r u"),
    (Event.UNPUBLISHED, Event.UNPUBLISHED, NONE, "- - u u u u u"),
    (Event.PUBLISHED_AGAIN, PublishedAgain(), NONE, "- i . . i i ."),
    (Event.COPY_REQUESTED, CopyRequested(), NONE, "- - i i i i i"),
    (Event.HOLD_RELEASED, HoldReleased(), NONE, "- - i i i i i"),
    (Event.TIMELINE_LEFT, Event.TIMELINE_LEFT, NONE, "- - . . i i ."),
    (Event.LOOK_SAME, LookedSame("new"), NONE, "- - . . f r ."),
    (Event.LOOK_COLUMNS, LookedColumns("new", (), Lsn(9), 1, "{}"), NONE, "- - . . f r ."),
    (Event.LOOK_LEAVES, LookedLeaves("new", leaves=frozenset({7})), NONE, "- - . . d d ."),
    (Event.LOOK_ASIDE, LookedAside("new"), NONE, "- - . d - - ."),
    (Event.LOOK_COPY, LookedCopy("public.t lost a partition"), NONE, "- - . . i i ."),
    (Event.LOOK_VERIFY, LookedSuspicious("new", why="why"), NONE, "- - . . f r ."),
    (Event.ASSESSED, Assessed(("why",)), NONE, "- - i d f r p"),
    (Event.VERIFIED_EQUAL, VerifiedEqual(1), NONE, "- . . . f r ."),
    (Event.VERIFIED_COPY, Event.VERIFIED_COPY, NONE, "- . . . i i ."),
    (Event.REASON_ENDED, ReasonEnded("c2"), NONE, "- - - - - - i"),
    (Event.OLD_TARGET_COPIED, OldTargetCopied(Lsn(5), 3), NONE, "- - - fL - - -"),
    (Event.OLD_TARGET_UNUSABLE, OldTargetUnusable(), NONE, "- - - i - - -"),
    (Event.COPY_BEGUN, CopyBegun(Lsn(9)), NONE, "- - d d - - -"),
    (Event.COPY_PLANNED, CopyPlanned("new"), NONE, "- - - d - - -"),
    (Event.COPY_WAITS, CopyWaits("why"), NONE, "- - i d - - -"),
    (Event.COPY_FINISHED, CopyFinished(Lsn(9), 1, 0, 5), NONE, "- - - f - - -"),
    (Event.LEAVES_APPLIED, LeavesApplied((UnseenLeaf(7),)), NONE, "- - - d - - -"),
    (Event.LEAVES_LOADED, LeavesLoaded(Lsn(9), 1, 0, 5), NONE, "- - - f - - -"),
    (Event.LEAVES_MORE, leaves_failed(Remedy.COPY, rows=ROWS), NONE, "- - - d - - -"),
    (Event.LEAVES_AWAIT_LOOK, leaves_failed(Remedy.LOOK), NONE, "- - - dL - - -"),
    (Event.LEAVES_GIVEN_UP, leaves_failed(Remedy.PARK), NONE, "- - - i - - -"),
    (Event.COPY_SUPERSEDED, CopySuperseded(7), NONE, "- - - d - - -"),
    (Event.COPY_FAILED_PARK, copy_failed(Remedy.PARK), NONE, "- - - p - - -"),
    (Event.COPY_FAILED_RETRY, copy_failed(Remedy.RETRY), NONE, "- - - d - - -"),
    (Event.COPY_FAILED_LAST, copy_failed(Remedy.RETRY), LAST, "- - - p - - -"),
    (Event.COPY_FAILED_WAIT, copy_failed(Remedy.WAIT), LAST, "- - - d - - -"),
    (Event.COPY_FAILED_LATER, copy_failed(Remedy.LATER), LAST, "- - - i - - -"),
    (Event.COPY_FAILED_STOP, copy_failed(Remedy.STOP), LAST, "- - - dS - - -"),
    (Event.BATCH_APPLIED, BatchApplied(Lsn(9), TaskResult(Lsn(8))), LAST, "- . . . f r ."),
    (Event.BATCH_FAILED_PARK, batch_failed(Remedy.PARK), NONE, "- . . . p p ."),
    (Event.BATCH_FAILED_COPY, batch_failed(Remedy.COPY), NONE, "- . . . i i ."),
    (Event.BATCH_FAILED_LEAVES, batch_failed(Remedy.COPY, rows=ROWS), NONE, "- . . . d d ."),
    (Event.BATCH_FAILED_RETRY, batch_failed(Remedy.RETRY), NONE, "- . . . f r ."),
    (Event.BATCH_FAILED_LAST, batch_failed(Remedy.RETRY), LAST, "- . . . p p ."),
    (Event.BATCH_FAILED_LOOK, batch_failed(Remedy.LOOK), NONE, "- . . . fL rL ."),
    (Event.BATCH_FAILED_LAST_LOOK, batch_failed(Remedy.LOOK), LAST, "- . . . iL iL ."),
    (Event.BATCH_FAILED_WAIT, batch_failed(Remedy.WAIT), LAST, "- . . . f r ."),
    (Event.BATCH_FAILED_STOP, batch_failed(Remedy.STOP), LAST, "- . . . fS rS ."),
    (Event.CAUGHT_UP, CaughtUp(Lsn(9)), NONE, "- - - - r r -"),
    (Event.TIME_PASSED, TimePassed(NOW, is_cut_due=False), NONE, "- - . . f r ."),
]
STATES = (None, *(TableState(letter) for letter in "uidfrp"))
EFFECTS = {"": None, "L": Effect.LOOK, "S": Effect.STOP}


def table(state: TableState | None) -> TableRecord:
    error = "an old reason" if state is TableState.PARKED else None
    return TableRecord(
        "public", "t", state or TableState.INITIALISE, Lsn(5), Lsn(5), 1, "old", error=error
    )


def test_the_walk_knows_every_state_and_every_event() -> None:
    assert [event for event, *_ in EXPECTED] == list(Event)
    assert set(TRANSITIONS) == set(STATES)
    assert set(STATES) - {None} == set(TableState)


@pytest.mark.parametrize(
    ("event", "happening", "attempts", "cells"),
    EXPECTED,
    ids=[event.name for event, *_ in EXPECTED],
)
def test_every_state(event: Event, happening: TableEvent, attempts: Attempts, cells: str) -> None:
    kind = happening if isinstance(happening, Event) else happening.kind(attempts)
    assert kind is event
    for state, cell in zip(STATES, cells.split(), strict=True):
        before = table(state)
        if cell == "-":
            with pytest.raises(ImpossibleEventError, match=r"public\.t"):
                next_state(state, before, attempts, happening)
            continue
        after = next_state(state, before, attempts, happening)
        if cell == ".":
            assert (after.table, after.attempts, after.effect) == (before, attempts, None), state
            continue
        assert (after.table.state, after.effect) == (TableState(cell[0]), EFFECTS[cell[1:]]), state
        if after.table.is_to_copy and state is not None and not before.is_to_copy:
            assert after.table.copy_words, "copied again only with a reason"
        if after.table.is_parked:
            assert after.table.error, "parked only with a reason"
            assert not after.table.deferred
        if after.table.state is not state or event is Event.BATCH_APPLIED:
            assert after.attempts == NONE, "a change of state begins the count anew"


@pytest.mark.parametrize(
    ("event", "happening", "attempts", "cells"),
    EXPECTED,
    ids=[event.name for event, *_ in EXPECTED],
)
def test_the_partitions_to_replace_are_forgotten_with_state_d(
    event: Event, happening: TableEvent, attempts: Attempts, cells: str
) -> None:
    """Else the copy of the table would be taken for a load of them."""
    state = TableState.DATA_COPY
    if cells.split()[STATES.index(state)] not in "-.":
        waiting = replace(table(state), load_leaves=(7,), gone_bounds=("id > 5",))
        after = next_state(state, waiting, attempts, happening).table
        if after.state is not state:
            assert (after.load_leaves, after.gone_bounds) == ((), ())
            assert not after.replaces_partitions


def test_what_became_of_some_partitions_leads_to_these_alone() -> None:
    """Also where a look does not help, and a copy of the table has not helped before."""
    record = table(TableState.READY)
    for failed in (
        batch_failed(Remedy.COPY, rows=ROWS, is_copied_for=True),
        batch_failed(Remedy.LOOK, rows=ROWS),
    ):
        waiting = next_state(record.state, record, LAST, failed).table
        assert waiting.replaces_partitions
        assert (waiting.gone_bounds, waiting.gone_leaves) == (("id < 9", "id > 20"), (7, 8))
    assert next_state(record.state, record, NONE, failed).table.state is TableState.READY
    more = leaves_failed(Remedy.LOOK, rows={5: ("id > 20",), 9: ("id = 10",)})
    waiting = next_state(TableState.DATA_COPY, waiting, LAST, more).table
    assert waiting.gone_bounds == ("id < 9", "id > 20", "id = 10")
    assert waiting.gone_leaves == (5, 7, 8, 9)
    last = next_state(TableState.DATA_COPY, waiting, LAST, leaves_failed(Remedy.LOOK))
    assert last.table.state is TableState.INITIALISE


@pytest.mark.parametrize("remedy", list(Remedy))
def test_every_remedy_means_something_for_a_batch_and_for_a_copy(remedy: Remedy) -> None:
    next_state(TableState.READY, table(TableState.READY), NONE, batch_failed(remedy))
    for attempts in (NONE, LAST):
        for event in (copy_failed(remedy), leaves_failed(remedy)):
            next_state(TableState.DATA_COPY, table(TableState.DATA_COPY), attempts, event)


@pytest.mark.parametrize(
    ("remedy", "attempts", "end"),
    [
        (Remedy.RETRY, BATCH_ATTEMPTS, TableState.PARKED),
        (Remedy.LOOK, LOOKS + 1, TableState.INITIALISE),
        (Remedy.WAIT, 20, TableState.READY),
    ],
)
def test_consecutive_failures(remedy: Remedy, attempts: int, end: TableState) -> None:
    record, counted = table(TableState.READY), NONE
    for number in range(attempts):
        assert record.state is TableState.READY, number
        assert record.deferred is (number > 0)
        transition = next_state(record.state, record, counted, batch_failed(remedy))
        record, counted = transition.table, transition.attempts.after_look()
    assert record.state is end


def test_what_fails_without_a_look_is_tried_again() -> None:
    record, counted = table(TableState.READY), NONE
    for _ in range(20):
        transition = next_state(record.state, record, counted, batch_failed(Remedy.LOOK))
        record, counted = transition.table, transition.attempts
    assert record.state is TableState.READY
    assert counted.after_look() == Attempts(looks=1)


def test_each_table_has_all_attempts_of_its_copy() -> None:
    record, counted = table(TableState.DATA_COPY), NONE
    for number in range(COPY_ATTEMPTS):
        assert record.state is TableState.DATA_COPY, number
        for event in (
            CopyBegun(Lsn(9)),
            CopyPlanned("new"),
            copy_failed(Remedy.RETRY),
        ):
            transition = next_state(record.state, record, counted, event)
            record, counted = transition.table, transition.attempts
    assert record.is_parked


def test_retries_are_spaced_and_a_success_begins_the_count_anew() -> None:
    record, counted, pauses = table(TableState.READY), NONE, []
    for _ in range(BATCH_ATTEMPTS - 1):
        failed = batch_failed(Remedy.RETRY)
        transition = next_state(record.state, record, counted, failed)
        record, counted = transition.table, transition.attempts
        pauses.append(record.next_due - NOW)
    assert pauses == [2, 4, 8, 16]
    applied = next_state(record.state, record, counted, BatchApplied(Lsn(9), TaskResult(Lsn(9))))
    assert (applied.attempts, applied.table.error, applied.table.deferred) == (NONE, None, False)


@pytest.mark.parametrize(
    ("now", "is_cut_due", "failures", "is_deferred"),
    [
        (NOW - 1, False, 0, True),
        (NOW, False, 0, False),
        (NOW - 1, True, 0, False),
        (NOW - 1, True, 1, True),  # it would be parked in a moment
        (NOW, True, 1, False),
    ],
)
def test_deferred_tables(now: float, is_cut_due: bool, failures: int, is_deferred: bool) -> None:
    record = replace(table(TableState.READY), deferred=True, next_due=NOW)
    passed = TimePassed(now, is_cut_due)
    after = next_state(record.state, record, Attempts(failures), passed)
    assert after.table.deferred is is_deferred


def test_a_suspicious_table_is_marked_until_it_was_verified_or_copied() -> None:
    def after(record: TableRecord, *events: TableEvent) -> TableRecord:
        for event in events:
            record = next_state(record.state, record, NONE, event).table
        return record

    marked = after(table(TableState.READY), LookedSuspicious("new", why="why"))
    assert (marked.to_verify, marked.verification_number, marked.fingerprint) == ("why", 1, "new")
    assert (
        after(marked, LookedSame("newer"), BatchApplied(Lsn(9), TaskResult(Lsn(9)))).to_verify
        == "why"
    )
    assert after(marked, VerifiedEqual(1)).to_verify == ""
    again = after(marked, LookedSuspicious("newer", why="why again"))
    assert after(again, VerifiedEqual(1)).to_verify == "why again"
    assert after(again, VerifiedEqual(2)).to_verify == ""
    copied = after(marked, Event.VERIFIED_COPY, CopyBegun(Lsn(9)), CopyPlanned("newest"))
    assert copied.to_verify == ""


def test_a_copy_stands_where_its_snapshot_was() -> None:
    begun = next_state(
        TableState.INITIALISE, table(TableState.INITIALISE), NONE, CopyBegun(Lsn(20))
    ).table
    assert begun.applied_through == Lsn(20)
    planned = next_state(begun.state, begun, NONE, CopyPlanned("f", (7,))).table
    assert (planned.copy_number, planned.fingerprint, planned.relations) == (2, "f", (7,))
    asked = replace(planned, may_replace_foreign_target=True, predecessor_oids=(3,))
    copied = next_state(asked.state, asked, NONE, CopyFinished(Lsn(30), 2, 4, 100)).table
    assert copied.applied_through == copied.committed == copied.copied_at == Lsn(30)
    assert (copied.copied_on, copied.version, copied.rows) == (2, 4, 100)
    assert not copied.may_replace_foreign_target
    assert not copied.predecessor_oids


def test_positions_never_fall() -> None:
    record = replace(table(TableState.READY), applied_through=Lsn(50), committed=Lsn(40), version=3)
    late = next_state(record.state, record, NONE, BatchApplied(Lsn(20), TaskResult(Lsn(20)))).table
    assert (late.applied_through, late.committed, late.version) == (Lsn(50), Lsn(40), 3)
    assert next_state(record.state, record, NONE, CaughtUp(Lsn(20))).table.applied_through == 50


def test_a_successor_is_copied_whatever_copy_data_says() -> None:
    event = Discovered(copy_data=False, predecessor_oids=(3,))
    record = next_state(None, table(None), NONE, event).table
    assert (record.state, record.predecessor_oids) == (TableState.INITIALISE, (3,))


def test_a_copy_that_did_not_help_is_not_repeated() -> None:
    """Asked for by the batch itself, and after looks that did not explain it."""
    for remedy, attempts in ((Remedy.COPY, NONE), (Remedy.LOOK, LAST)):
        first = batch_failed(remedy, cause="c1")
        copied = next_state(TableState.READY, table(TableState.READY), attempts, first).table
        assert (copied.state, copied.copied_for) == (TableState.INITIALISE, "c1")
        again = batch_failed(remedy, cause="c1", is_copied_for=True)
        parked = next_state(TableState.READY, table(TableState.READY), attempts, again).table
        assert parked.is_parked
        assert "a copy did not help" in str(parked.error)
    waits = batch_failed(Remedy.LOOK, cause="c1", is_copied_for=True)
    assert waits.kind(NONE) is Event.BATCH_FAILED_LOOK


@pytest.mark.parametrize("failed", [copy_failed(Remedy.RETRY), batch_failed(Remedy.RETRY)])
def test_a_table_that_is_parked_after_its_last_attempt_says_how_it_goes_on(
    failed: CopyFailed | BatchFailed,
) -> None:
    copied = table(TableState.COPIED)
    assert failed.change(copied, NONE).error == "why"
    way_out = "when its cause is gone, pgsluice copy CONFIG public.t"
    assert failed.change(copied, LAST).error == f"why\n  → {way_out}"
    told = replace(failed, failure=replace(failed.failure, message=f"why\n  → {way_out}"))
    assert told.change(copied, LAST).error == f"why\n  → {way_out}", "once"


def test_a_parked_table_says_for_what_and_is_taken_up_for_a_cause() -> None:
    failed = BatchFailed(Failure(Remedy.PARK, "why", reason=ParkReason.KEY), NOW)
    parked = next_state(TableState.READY, table(TableState.READY), NONE, failed).table
    assert parked.parked_for == ParkReason.KEY
    taken_up = next_state(TableState.PARKED, parked, NONE, ReasonEnded("c2")).table
    assert (taken_up.state, taken_up.error) == (TableState.INITIALISE, None)
    assert (taken_up.copied_for, taken_up.parked_for) == ("c2", "")


def test_a_renamed_table_goes_on_where_its_old_target_stood() -> None:
    ready = replace(table(TableState.READY), version=3, copied_at=Lsn(2), rows=7)
    renamed = Renamed(("s", "n"), "/lake/n", (8,), OldTarget("public", "t", 1, 3))
    record = next_state(ready.state, ready, NONE, renamed).table
    assert (record.title, record.target, record.predecessor_oids) == ("s.n", "/lake/n", (8,))
    assert (record.copy_number, record.version, record.applied_through) == (2, -1, 5)
    again = next_state(record.state, record, NONE, replace(renamed, name=("s", "m"))).table
    assert (again.title, again.copy_number) == ("s.m", 3), "a late copy is not mistaken for it"
    copied = next_state(again.state, again, NONE, OldTargetCopied(Lsn(5), 0)).table
    assert (copied.old_target, copied.predecessor_oids) == (None, ())
    assert (copied.committed, copied.version, copied.rows, copied.copied_at) == (5, 0, 7, 2)
    other = next_state(again.state, again, NONE, OldTargetUnusable()).table
    assert other.old_target is None
    begun = next_state(again.state, again, NONE, CopyBegun(Lsn(9))).table
    assert begun.old_target is None, "from now on it is copied from the source"
