"""Every state with every event: what follows, what is ignored, and what cannot happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgsluice.errors import Failure, ParkReason, Remedy
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    AddedColumns,
    Claim,
    Copied,
    OldTarget,
    Partitions,
    Pending,
    SourceView,
    TableRecord,
    TableState,
    UnseenLeaf,
)
from pgsluice.subscription.base.work import TaskResult
from pgsluice.subscription.lifecycle.look_events import (
    Assessed,
    Discovered,
    LeavesApplied,
    LeavesFailed,
    Looked,
    LookedAside,
    NotSent,
    OldTargetCopied,
    PublishedAgain,
    ReasonEnded,
    Renamed,
    TargetFreed,
    TargetTaken,
    Unpublished,
    VerifiedEqual,
)
from pgsluice.subscription.lifecycle.table_events import (
    BATCH_ATTEMPTS,
    COPY_ATTEMPTS,
    LOOKS,
    BatchApplied,
    BatchFailed,
    CaughtUp,
    CopyAbandoned,
    CopyBegun,
    CopyFailed,
    CopyFinished,
    CopyNeeded,
    CopyPlanned,
    CopyRequested,
    CopySuperseded,
    CopyWaits,
    HoldReleased,
    RepairNeeded,
    TimePassed,
)
from pgsluice.subscription.lifecycle.transitions import (
    EFFECTS,
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
NAME = ("s", "n")
LAST = Attempts(failures=BATCH_ATTEMPTS - 1, looks=LOOKS)
NONE = Attempts()
ROWS = {7: ("id < 9",), 8: ("id < 9", "id > 20")}


def copy_failed(remedy: Remedy) -> CopyFailed:
    return CopyFailed(Failure(remedy, "why"))


def leaves_failed(remedy: Remedy, **more: Any) -> LeavesFailed:
    return LeavesFailed(Failure(remedy, "why"), **more)


def batch_failed(remedy: Remedy, **more: Any) -> BatchFailed:
    return BatchFailed(Failure(remedy, "why"), NOW, **more)


# For each event, those of its kind with their facts and the failures before them, and what it makes
# of a table that is unknown, unpublished, i, d, f, r and p. "." is ignored, "-" is impossible; "L"
# (look) and "S" (stop) are the effects.
EXPECTED: dict[Event, tuple[str, list[TableEvent | tuple[TableEvent, Attempts]]]] = {
    Event.DISCOVERED: ("i - - - - - -", [Discovered(), Discovered(False, (3,))]),
    Event.DISCOVERED_WITHOUT_COPY: ("r - - - - - -", [Discovered(copy_data=False)]),
    Event.TARGET_TAKEN: ("p p - - - - p", [TargetTaken()]),
    Event.REASON_ENDED: ("- - - - - - i", [TargetFreed((3,)), ReasonEnded("c2")]),
    Event.DESCRIBED: ("- u i d f r p", [Renamed(NAME, keeps_state=True), Assessed(("why",))]),
    Event.RENAMED_WITH_TARGET: ("- - - d d d -", [Renamed(NAME, old_target=OLD_TARGET)]),
    Event.RENAMED_WITHOUT_TARGET: ("- - - i i i -", [Renamed(NAME)]),
    Event.NOT_SENT: ("- - u u f r u", [NotSent()]),
    Event.UNPUBLISHED: ("- - u u u u u", [Unpublished()]),
    Event.PUBLISHED_AGAIN: ("- i . . i i .", [PublishedAgain()]),
    Event.COPY_DEMANDED: ("- - i i i i i", [CopyRequested(), HoldReleased()]),
    Event.COPY_NEEDED: (
        "- . . . i i .",
        [CopyNeeded("why"), RepairNeeded(), batch_failed(Remedy.COPY)],
    ),
    Event.PARTITIONS_NEEDED: (
        "- . . . d d .",
        [Looked("new", leaves=frozenset({7}), gone={}), batch_failed(Remedy.COPY, rows=ROWS)],
    ),
    Event.UPDATED: (
        "- . . . f r .",
        [
            Looked("new"),
            Looked("new", (), Lsn(9), 1, facts="{}"),
            Looked("new", doubt="why"),
            VerifiedEqual(1),
            TimePassed(NOW, is_cut_due=False),
            batch_failed(Remedy.WAIT),
            batch_failed(Remedy.LATER),
        ],
    ),
    Event.LOOK_ASIDE: ("- - . d - - .", [LookedAside("new")]),
    Event.COPY_BEGUN: ("- - d d - - -", [CopyBegun(Lsn(9))]),
    Event.COPY_WAITS: ("- - i d - - -", [CopyWaits("why")]),
    Event.COPY_UPDATED: (
        "- - - d - - -",
        [
            CopyPlanned("new"),
            CopySuperseded(7),
            LeavesApplied((UnseenLeaf(7),)),
            leaves_failed(Remedy.COPY, rows=ROWS),
            (leaves_failed(Remedy.WAIT), LAST),
            (copy_failed(Remedy.WAIT), LAST),
        ],
    ),
    Event.COPY_FINISHED: ("- - - f - - -", [CopyFinished(Lsn(9), 1, 0, 5)]),
    Event.OLD_TARGET_COPIED: ("- - - fL - - -", [OldTargetCopied(Lsn(5), 3)]),
    Event.COPY_ABANDONED: (
        "- - - i - - -",
        [CopyAbandoned(), (copy_failed(Remedy.LATER), LAST), leaves_failed(Remedy.PARK)],
    ),
    Event.COPY_RETRIED: ("- - - d - - -", [copy_failed(Remedy.RETRY), leaves_failed(Remedy.RETRY)]),
    Event.COPY_AWAITS_LOOK: ("- - - dL - - -", [leaves_failed(Remedy.LOOK)]),
    Event.COPY_PARKED: (
        "- - - p - - -",
        [copy_failed(Remedy.PARK), (copy_failed(Remedy.RETRY), LAST)],
    ),
    Event.COPY_STOPPED: ("- - - dS - - -", [(copy_failed(Remedy.STOP), LAST)]),
    Event.BATCH_APPLIED: ("- . . . f r .", [(BatchApplied(Lsn(9), TaskResult(Lsn(8))), LAST)]),
    Event.BATCH_RETRIED: ("- . . . f r .", [batch_failed(Remedy.RETRY)]),
    Event.BATCH_AWAITS_LOOK: ("- . . . fL rL .", [batch_failed(Remedy.LOOK)]),
    Event.LOOKS_WERE_IN_VAIN: ("- . . . iL iL .", [(batch_failed(Remedy.LOOK), LAST)]),
    Event.BATCH_PARKED: (
        "- . . . p p .",
        [batch_failed(Remedy.PARK), (batch_failed(Remedy.RETRY), LAST)],
    ),
    Event.BATCH_STOPPED: ("- . . . fS rS .", [batch_failed(Remedy.STOP)]),
    Event.CAUGHT_UP: ("- - - - r r -", [CaughtUp(Lsn(9))]),
}
HAPPENINGS = [
    (event, *(happening if isinstance(happening, tuple) else (happening, NONE)), cells)
    for event, (cells, happenings) in EXPECTED.items()
    for happening in happenings
]
EVERY = pytest.mark.parametrize(
    ("event", "happening", "attempts", "cells"),
    HAPPENINGS,
    ids=[f"{event.name} {type(happening).__name__}" for event, happening, *_ in HAPPENINGS],
)
STATES = (None, *(TableState(letter) for letter in "uidfrp"))
EFFECTS_OF_CELLS = {"L": Effect.LOOK, "S": Effect.STOP}


def table(state: TableState | None) -> TableRecord:
    error = "an old reason" if state is TableState.PARKED else None
    return TableRecord(
        "public", "t", state or TableState.INITIALISE, Lsn(5), Lsn(5), 1, SourceView("old"), error
    )


def full(state: TableState | None) -> TableRecord:
    """A table with all that its state uses."""
    each = replace(
        table(state),
        claim=Claim((3,), any_source=True),
        copying=Partitions((7,), (8,), ("id > 5",)),
        pending=Pending(9.0, AddedColumns(Lsn(4), "{}"), "doubt", (UnseenLeaf(9),)),
        parked_for="key",
    )
    return each.in_state(each.state)


def test_the_walk_knows_every_event() -> None:
    assert list(EXPECTED) == list(Event) == list(TRANSITIONS)
    assert EFFECTS.keys() <= EXPECTED.keys()


@EVERY
def test_every_state(event: Event, happening: TableEvent, attempts: Attempts, cells: str) -> None:
    assert happening.kind(attempts) is event
    for state, cell in zip(STATES, cells.split(), strict=True):
        before = table(state)
        if cell == "-":
            with pytest.raises(ImpossibleEventError, match=r"public\.t"):
                next_state(state, before, attempts, happening)
            continue
        after = next_state(state, before, attempts, happening)
        if cell == ".":
            assert (after.table, after.attempts, after.effects) == (before, attempts, ()), state
            continue
        assert after.table.state is TableState(cell[0]), state
        for letter, effect in EFFECTS_OF_CELLS.items():
            assert (effect in after.effects) is (letter in cell[1:]), state
        if after.table.is_to_copy and state is not None and not before.is_to_copy:
            assert after.table.copy_words, "copied again only with a reason"
        if after.table.is_parked:
            assert after.table.error, "parked only with a reason"
        if after.table.state is not state or event is Event.BATCH_APPLIED:
            assert after.attempts == NONE, "a change of state begins the count anew"


@EVERY
def test_each_state_has_only_what_it_uses(
    event: Event, happening: TableEvent, attempts: Attempts, cells: str
) -> None:
    """Else the copy of a table would be taken for a load of partitions, for instance."""
    for state, cell in zip(STATES, cells.split(), strict=True):
        if cell in "-.":
            continue
        after = next_state(state, full(state), attempts, happening).table
        assert after == after.in_state(after.state)
        assert after.is_parked or not after.parked_for
        assert after.copying is None or after.state is TableState.DATA_COPY
        assert after.pending == Pending() or after.is_active or after.copying is not None
        assert after.claim == Claim() or not after.is_active


def test_what_became_of_some_partitions_leads_to_these_alone() -> None:
    """Also where a look does not help, and a copy of the table has not helped before."""
    record = table(TableState.READY)
    for failed in (
        batch_failed(Remedy.COPY, rows=ROWS, is_copied_for=True),
        batch_failed(Remedy.LOOK, rows=ROWS),
    ):
        waiting = next_state(record.state, record, LAST, failed).table
        assert waiting.replaces_partitions
        assert waiting.copying == Partitions((), (7, 8), ("id < 9", "id > 20"))
    assert next_state(record.state, record, NONE, failed).table.state is TableState.READY
    more = leaves_failed(Remedy.LOOK, rows={5: ("id > 20",), 9: ("id = 10",)})
    waiting = next_state(TableState.DATA_COPY, waiting, LAST, more).table
    assert waiting.copying == Partitions((), (5, 7, 8, 9), ("id < 9", "id > 20", "id = 10"))
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
        assert (record.pending.due is not None) is (number > 0)
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
        assert record.pending.due is not None
        pauses.append(record.pending.due - NOW)
    assert pauses == [2, 4, 8, 16]
    applied = next_state(record.state, record, counted, BatchApplied(Lsn(9), TaskResult(Lsn(9))))
    assert (applied.attempts, applied.table.error, applied.table.pending) == (NONE, None, Pending())


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
    record = replace(table(TableState.READY), pending=Pending(due=NOW))
    passed = TimePassed(now, is_cut_due)
    after = next_state(record.state, record, Attempts(failures), passed)
    assert (after.table.pending.due is not None) is is_deferred


def test_a_suspicious_table_is_marked_until_it_was_verified_or_copied() -> None:
    def after(record: TableRecord, *events: TableEvent) -> TableRecord:
        for event in events:
            record = next_state(record.state, record, NONE, event).table
        return record

    marked = after(table(TableState.READY), Looked("new", doubt="why"))
    assert (marked.pending.verification, marked.verification_number) == ("why", 1)
    assert marked.source.fingerprint == "new"
    assert (
        after(
            marked, Looked("newer"), BatchApplied(Lsn(9), TaskResult(Lsn(9)))
        ).pending.verification
        == "why"
    )
    assert after(marked, VerifiedEqual(1)).pending.verification == ""
    again = after(marked, Looked("newer", doubt="why again"))
    assert after(again, VerifiedEqual(1)).pending.verification == "why again"
    assert after(again, VerifiedEqual(2)).pending.verification == ""
    copied = after(marked, CopyNeeded("it differs"), CopyBegun(Lsn(9)), CopyPlanned("newest"))
    assert copied.pending.verification == ""


def test_a_repair_is_given_up_for_a_copy_that_a_user_asked_for() -> None:
    ready = table(TableState.READY)
    repaired = next_state(ready.state, ready, NONE, RepairNeeded()).table
    begun = next_state(repaired.state, repaired, NONE, CopyBegun(Lsn(9))).table
    assert begun.claim.repairs
    assert "pgsluice repairs it" in begun.copy_words
    asked = next_state(begun.state, begun, NONE, CopyRequested()).table
    assert (asked.claim.repairs, asked.claim.any_source) == (False, True)
    ready = table(TableState.READY)
    kept = BatchApplied(Lsn(9), TaskResult(Lsn(9), rows_skipped=1, has_key=False))
    without_copy = next_state(ready.state, ready, NONE, kept).table
    assert not without_copy.pending.verification
    copied = replace(ready, copied=Copied(position=Lsn(3)))
    assert next_state(copied.state, copied, NONE, kept).table.pending.verification


def test_a_copy_stands_where_its_snapshot_was() -> None:
    begun = next_state(
        TableState.INITIALISE, table(TableState.INITIALISE), NONE, CopyBegun(Lsn(20))
    ).table
    assert begun.applied_through == Lsn(20)
    planned = next_state(begun.state, begun, NONE, CopyPlanned("f", (7,))).table
    assert (planned.copy_number, planned.source) == (2, SourceView("f", (7,)))
    asked = replace(planned, claim=Claim((3,), any_source=True))
    copied = next_state(asked.state, asked, NONE, CopyFinished(Lsn(30), 2, 4, 100)).table
    assert copied.applied_through == copied.committed == copied.copied.position == Lsn(30)
    assert (copied.copied.timeline, copied.version, copied.rows) == (2, 4, 100)
    assert copied.claim == Claim()
    loading = replace(planned, rows=50, copying=Partitions((7,)))
    loaded = next_state(loading.state, loading, NONE, CopyFinished(Lsn(30), 2, 4, 100)).table
    assert loaded.rows == 150, "the rows of other partitions stay"


def test_positions_never_fall() -> None:
    record = replace(table(TableState.READY), applied_through=Lsn(50), committed=Lsn(40), version=3)
    late = next_state(record.state, record, NONE, BatchApplied(Lsn(20), TaskResult(Lsn(20)))).table
    assert (late.applied_through, late.committed, late.version) == (Lsn(50), Lsn(40), 3)
    assert next_state(record.state, record, NONE, CaughtUp(Lsn(20))).table.applied_through == 50


def test_a_successor_is_copied_whatever_copy_data_says() -> None:
    event = Discovered(copy_data=False, predecessor_oids=(3,))
    record = next_state(None, table(None), NONE, event).table
    assert (record.state, record.claim) == (TableState.INITIALISE, Claim((3,)))


def test_a_copy_that_did_not_help_is_not_repeated() -> None:
    """Asked for by the batch itself, and after looks that did not explain it."""
    for remedy, attempts in ((Remedy.COPY, NONE), (Remedy.LOOK, LAST)):
        first = batch_failed(remedy, cause="c1")
        copied = next_state(TableState.READY, table(TableState.READY), attempts, first).table
        assert (copied.state, copied.copied.cause) == (TableState.INITIALISE, "c1")
        again = batch_failed(remedy, cause="c1", is_copied_for=True)
        parked = next_state(TableState.READY, table(TableState.READY), attempts, again).table
        assert parked.is_parked
        assert "pgsluice copied the table again, but the error remains" in str(parked.error)
    waits = batch_failed(Remedy.LOOK, cause="c1", is_copied_for=True)
    assert waits.kind(NONE) is Event.BATCH_AWAITS_LOOK


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("set key", "set key"),
        ("nothing to do: pgsluice copies the table again", "change the table or its publications"),
    ],
)
def test_what_did_not_help_is_not_advised_again(hint: str, shown: str) -> None:
    failure = Failure(Remedy.COPY, f"what\n  → {hint}")
    failed = BatchFailed(failure, NOW, cause="c1", is_copied_for=True)
    parked = next_state(TableState.READY, table(TableState.READY), NONE, failed).table
    what, _, way_out = str(parked.error).partition("\n  → ")
    assert what == "what: pgsluice copied the table again, but the error remains"
    assert way_out.startswith(shown)


@pytest.mark.parametrize("failed", [copy_failed(Remedy.RETRY), batch_failed(Remedy.RETRY)])
def test_a_table_that_is_parked_after_its_last_attempt_says_how_it_goes_on(
    failed: CopyFailed | BatchFailed,
) -> None:
    copied = table(TableState.COPIED)
    assert failed.change(copied, NONE).error == "why"
    way_out = "solve the cause, then copy the table: pgsluice copy CONFIG public.t"
    assert failed.change(copied, LAST).error == f"why\n  → {way_out}"
    told = replace(failed, failure=replace(failed.failure, message=f"why\n  → {way_out}"))
    assert told.change(copied, LAST).error == f"why\n  → {way_out}", "once"
    message = "why\n  → nothing to do: pgsluice retries the changes"
    told = replace(failed, failure=replace(failed.failure, message=message))
    assert told.change(copied, NONE).error == message
    assert told.change(copied, LAST).error == f"why\n  → {way_out}", "no attempt follows"


def test_a_parked_table_says_for_what_and_is_taken_up_for_a_cause() -> None:
    failed = BatchFailed(Failure(Remedy.PARK, "why", reason=ParkReason.KEY), NOW)
    parked = next_state(TableState.READY, table(TableState.READY), NONE, failed).table
    assert parked.parked_for == ParkReason.KEY
    taken_up = next_state(TableState.PARKED, parked, NONE, ReasonEnded("c2")).table
    assert (taken_up.state, taken_up.error) == (TableState.INITIALISE, None)
    assert (taken_up.copied.cause, taken_up.parked_for) == ("c2", "")


def test_a_renamed_table_goes_on_where_its_old_target_stood() -> None:
    ready = replace(table(TableState.READY), version=3, copied=Copied(Lsn(2)), rows=7)
    renamed = Renamed(("s", "n"), "/lake/n", (8,), OldTarget("public", "t", 1, 3))
    record = next_state(ready.state, ready, NONE, renamed).table
    assert (record.title, record.target, record.claim) == ("s.n", "/lake/n", Claim((8,)))
    assert (record.copy_number, record.version, record.applied_through) == (2, -1, 5)
    again = next_state(record.state, record, NONE, replace(renamed, name=("s", "m"))).table
    assert (again.title, again.copy_number) == ("s.m", 3), "a late copy is not mistaken for it"
    copied = next_state(again.state, again, NONE, OldTargetCopied(Lsn(5), 0)).table
    assert (copied.copying, copied.claim) == (None, Claim())
    assert (copied.committed, copied.version, copied.rows, copied.copied.position) == (5, 0, 7, 2)
    other = next_state(again.state, again, NONE, CopyAbandoned("why")).table
    assert other.old_target is None
    begun = next_state(again.state, again, NONE, CopyBegun(Lsn(9))).table
    assert begun.old_target is None, "from now on it is copied from the source"
