"""A barrier ends batches at its position, holds them for a while, and is void without its owner."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.children import Child
from tests.support.waiting import HANGS_S, await_that

from pgsluice.errors import SpoolBusy
from pgsluice.lsn import Lsn
from pgsluice.spool import Owner, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.base import barrier as barriers
from pgsluice.subscription.base.barrier import (
    Barrier,
    BarrierAnswer,
    BarrierOwner,
    BarrierWait,
    barrier_versions,
    current_barrier,
    standing_tables,
    waiting_barrier,
    write_answer,
)

START, INSIDE, END = Lsn(100), Lsn(150), Lsn(200)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[BarrierOwner]:
    with BarrierOwner(tmp_path, ()) as owner:
        yield owner


def answer(folder: Path, *, is_passed: bool = False) -> None:
    """Answer as the driver does."""
    barrier = waiting_barrier(folder)
    assert barrier is not None
    tables = {} if is_passed else {1: barriers.StandingTable("public.t", "lake/t", version=7)}
    write_answer(folder, BarrierAnswer(barrier.barrier_id, INSIDE, is_passed, tables))


def test_without_a_barrier_a_batch_ends_where_it_would(tmp_path: Path) -> None:
    assert BarrierWait(tmp_path).limit(START, END, wait_s=0) == END


def test_a_batch_ends_at_the_position_and_none_begins_there(
    tmp_path: Path, owner: BarrierOwner
) -> None:
    wait = BarrierWait(tmp_path)
    owner.move(INSIDE)
    assert wait.limit(START, END, wait_s=0) == INSIDE
    assert wait.limit(START, Lsn(120), wait_s=0) == Lsn(120)
    assert wait.limit(INSIDE, END, wait_s=0) == INSIDE
    answer(tmp_path)
    assert wait.limit(INSIDE, END, wait_s=0) == END


def test_a_hold_lets_no_batch_begin_until_a_position_is_known(
    tmp_path: Path, owner: BarrierOwner
) -> None:
    wait = BarrierWait(tmp_path)
    owner.hold()
    assert wait.limit(START, END, wait_s=0) == START
    mover = threading.Timer(0.1, owner.move, [INSIDE])
    mover.start()
    assert wait.limit(START, END, wait_s=60) == INSIDE
    mover.join()


def test_batches_pass_a_barrier_that_nobody_answers(tmp_path: Path, owner: BarrierOwner) -> None:
    owner.hold()
    wait = BarrierWait(tmp_path, hold_s=0.2)
    assert wait.limit(START, END, wait_s=60) == END


def test_a_hold_and_its_position_share_the_time(tmp_path: Path, owner: BarrierOwner) -> None:
    owner.hold()
    wait = BarrierWait(tmp_path, hold_s=0.2)
    assert wait.limit(START, END, wait_s=0) == START
    over_at = time.monotonic() + 0.2
    owner.move(START)
    await_that(lambda: time.monotonic() >= over_at)
    assert wait.limit(START, END, wait_s=0) == END, "it began with the hold"


def test_a_position_that_comes_after_the_time_of_its_hold_has_time_of_its_own(
    tmp_path: Path,
) -> None:
    """A batch would begin there before the driver has answered."""
    with BarrierOwner(tmp_path, (), hold_s=0.0) as owner:
        owner.hold()
        wait = BarrierWait(tmp_path, hold_s=0.2)
        assert wait.limit(START, END, wait_s=60) == END
        owner.move(INSIDE)
        assert wait.limit(START, END, wait_s=0) == INSIDE
        assert wait.limit(INSIDE, END, wait_s=0) == INSIDE


def test_the_next_attempt_does_not_take_the_answer_of_the_last_one(
    tmp_path: Path, owner: BarrierOwner
) -> None:
    owner.move(INSIDE)
    answer(tmp_path, is_passed=True)
    passed = owner.answer()
    assert passed is not None
    assert passed.is_passed
    owner.hold()
    assert owner.answer() is None
    owner.move(END)
    assert owner.answer() is None
    answer(tmp_path)
    assert (given := owner.answer()) is not None
    assert given.tables[1].version == 7


def test_versions_are_kept_while_the_owner_lives(tmp_path: Path) -> None:
    with BarrierOwner(tmp_path, ()) as owner:
        owner.move(INSIDE)
        assert barrier_versions(tmp_path) == {}
        answer(tmp_path)
        assert barrier_versions(tmp_path) == {1: 7}
    assert barrier_versions(tmp_path) == {}
    assert not list(tmp_path.glob("*.json"))


def test_the_files_of_a_dead_owner_are_removed(tmp_path: Path) -> None:
    assert Child(_hold_and_die, tmp_path).wait(HANGS_S) == -signal.SIGKILL
    assert list(tmp_path.glob("*.json"))
    assert current_barrier(tmp_path) is None
    assert not list(tmp_path.glob("*.json"))


def _hold_and_die(folder: Path) -> None:
    with BarrierOwner(folder, ()) as owner:
        owner.hold()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_subscription_has_one_barrier_and_the_next_owner_waits_for_it(tmp_path: Path) -> None:
    busy = pytest.raises(SpoolBusy, match="another process verifies")
    with BarrierOwner(tmp_path, ()) as first:
        first.move(INSIDE)
        with busy, BarrierOwner(tmp_path, (), wait_s=0):
            pass
        with busy, BarrierOwner(tmp_path, (), wait_s=3600, is_stopping=lambda: True):
            pass
        threading.Timer(0.1, first.__exit__).start()
        with BarrierOwner(tmp_path, (), wait_s=60) as second:
            second.move(END)
            barrier = current_barrier(tmp_path)
            assert barrier is not None
            assert barrier.position == END


def test_tables_that_cannot_be_compared_say_why() -> None:
    def table(name: str, state: TableState = TableState.READY, **facts: object) -> TableRecord:
        reached = {"applied_through": INSIDE, "committed": START, **facts}
        return TableRecord("public", name, state, **reached)  # type: ignore[arg-type]

    record = SubscriptionRecord(
        name="lake",
        owner=Owner.CONFIG,
        mode="current",
        sink="lake",
        registered=START,
        position=INSIDE,
        tables={
            1: table("equal"),
            2: table("parked", TableState.PARKED, error="its key is gone"),
            3: table("waiting", TableState.INITIALISE),
            4: table("late", committed=END, applied_through=END),
            5: table("behind", applied_through=START),
            6: table("gone"),
            7: table("not_sent", is_published=False),
        },
        unpublished={8: table("unpublished", TableState.UNPUBLISHED)},
    )

    def version_of(oid: int, _: TableRecord) -> int:
        return -1 if oid == 6 else 9

    tables = standing_tables(record, Barrier("1", INSIDE), version_of)
    reasons = {oid: standing.reason for oid, standing in tables.items()}
    assert reasons == {
        1: None,
        2: "parked: its key is gone",
        3: "waits for a copy",
        4: f"copied at {END}, after this position",
        5: f"behind, at {START}",
        6: "its target is gone",
        7: "not published; its target stays as it is",
        8: "not published; its target stays as it is",
    }
    assert [oid for oid, standing in tables.items() if standing.version >= 0] == [1]
    assert {oid for oid, standing in tables.items() if not standing.is_published} == {7, 8}
    chosen = standing_tables(record, Barrier("1", INSIDE, ("public.late",)), version_of)
    assert list(chosen) == [4]
