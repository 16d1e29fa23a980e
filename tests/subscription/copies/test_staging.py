"""In which order portions are read, and how many at the same time; tasks run in this process."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.subscription.copies.test_scheduler import Tables
from tests.support.local_spark import LocalSession, context_of
from tests.support.waiting import await_that

from pgsluice.config import SubscriptionConfig
from pgsluice.copy.job import CopyWork
from pgsluice.errors import Failure, Remedy
from pgsluice.facts import RelationFacts
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import PORTION_BYTES, Portion, Read
from pgsluice.snapshots.snapshot import SnapshotGone
from pgsluice.subscription.copies.portion_queue import LockedPortions, TableCopy
from pgsluice.subscription.copies.scheduler import CopyRate, CopyScheduler
from pgsluice.subscription.copies.staging import Stage, Staging

SMALL = 1000


def table(name: str, *sizes: int) -> TableCopy:
    """A table's copy with portions of these sizes."""
    facts = RelationFacts(
        1, "public", name, "r", 1, "public", name, ("id",), ("id",), "d", filenode=1, columns=()
    )
    portions = tuple((Read(condition=str(n), size_bytes=size),) for n, size in enumerate(sizes))
    return TableCopy(CopyWork(facts, "public", name, None, None, copy_number=1), portions)


def stage(
    folder: Path, portions: Sequence[tuple[CopyWork, Portion]], stands_back: bool
) -> list[StagedRows | Failure | None]:
    """Write down what is read, and how many tasks do so at this moment; as
    :meth:`CopyTables.stage_all`, nothing more is read of a table that has failed, or that was
    read for long enough."""
    (folder / "stands_back").write_text(str(stands_back))
    mark = folder / f"task-{uuid.uuid4()}"
    mark.touch()
    at_once = len(list(folder.glob("task-*")))
    with (folder / "tasks").open("a") as file:
        file.write(f"{len(portions)}\n")
    if portions[0][0].name.startswith("pair"):
        await_that(lambda: (folder / "tasks").read_text().count("\n") > 1, "the other task began")
    results: list[StagedRows | Failure | None] = []
    failed = set()
    for work, ((read, *_)) in portions:
        if work.name in failed or (work.name == "slow" and results):
            results.append(None)
            continue
        with (folder / "read").open("a") as file:
            file.write(f"{work.name}{read.condition}\n")
        before = (folder / "read").read_text().count(f"{work.name}{read.condition}\n")
        if work.name == "bad":
            results.append(Failure(Remedy.PARK, "why"))
        elif work.name == "gone":
            results.append(Failure.of(SnapshotGone("why")))
        elif work.name == "locked" or (work.name, read.condition, before) == ("free", "1", 1):
            results.append(Failure(Remedy.LATER, "why"))
        elif work.name == "broken" or (work.name, before) == ("shaken", 1):
            results.append(Failure(Remedy.WAIT, "why"))
        else:
            results.append(StagedRows(rows=at_once))
        if isinstance(results[-1], Failure):
            failed.add(work.name)
    mark.unlink()
    return results


class ReadHere:
    """A snapshot whose rows are made up in this process."""

    def __init__(self, folder: Path, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self._folder = folder

    def reading(self) -> AbstractContextManager[Stage]:
        return nullcontext(partial(stage, self._folder))


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., tuple[list[TableCopy], list[str]]]:
    """Stages tables: those that ended, and what was read, in order."""

    def run(
        *copies: TableCopy,
        at_once: int = 1,
        rate: float | None = None,
        is_wanted: Callable[[TableCopy], bool] = lambda _: True,
        is_stopping: Callable[[], bool] = lambda: False,
        is_beside_stream: bool = False,
        are_kept: bool = False,
        note: Callable[[TableCopy, int], None] = lambda *_: None,
        locked: LockedPortions | None = None,
    ) -> tuple[list[TableCopy], list[str]]:
        session = LocalSession()
        session.defaultParallelism = at_once
        keys = {"name": "lake", "sink": {"type": "delta", "path": "/lake/{table}"}}
        settings = SubscriptionConfig.model_validate({**keys, "copy_cores": at_once})
        share = CopyScheduler(context_of(session)).share(settings, Tables(is_beside_stream))
        share.rate = CopyRate(rate)
        ended: list[TableCopy] = []
        slots, read = share.join(at_once), ReadHere(tmp_path, is_kept=are_kept)
        staging = Staging(read, copies, slots, locked, poll_s=0.01)
        try:
            while staging.is_unfinished:
                if is_stopping():
                    staging.drop_rest()
                else:
                    staging.begin(is_wanted)
                for copy, number in staging.ended():
                    note(copy, number)
                    if copy.failure is not None or copy.is_staged:
                        ended.append(copy)
                ended += staging.give_up()
        finally:
            for copy, number in staging.close():
                note(copy, number)
        file = tmp_path / "read"
        return ended, file.read_text().split() if file.exists() else []

    return run


def names(copies: Sequence[TableCopy]) -> list[str]:
    return [copy.work.name for copy in copies]


def test_small_tables_come_first_and_each_is_given_back_when_it_is_staged(copied) -> None:
    big = table("big", *[PORTION_BYTES] * 3)
    ended, read = copied(big, table("b", SMALL * 2), table("a", SMALL))
    assert read == ["a0", "b0", "big0", "big1", "big2"]
    assert names(ended) == ["a", "b", "big"]
    assert sorted(big.staged) == [0, 1, 2]


def test_no_more_tasks_run_at_once_than_the_copy_may_have(copied) -> None:
    ended, read = copied(*(table(f"t{n}_", *[PORTION_BYTES] * 4) for n in range(4)), at_once=2)
    assert len(read) == len(set(read)) == 16
    assert max(part.rows for copy in ended for part in copy.staged.values()) <= 2


@pytest.mark.parametrize("is_beside_stream", [False, True])
def test_tasks_stand_back_only_where_changes_are_applied_meanwhile(
    copied, tmp_path: Path, is_beside_stream: bool
) -> None:
    copied(table("t", SMALL), is_beside_stream=is_beside_stream)
    assert (tmp_path / "stands_back").read_text() == str(is_beside_stream)


@pytest.mark.parametrize(
    ("how", "portions"),
    [
        ({}, [4, 3, 2, 1]),
        ({"is_beside_stream": True}, [1] * 10),
        ({"rate": 1e12}, [1] * 10),
        ({"are_kept": True}, [1] * 10),
    ],
)
def test_a_task_reads_several_portions_only_if_nothing_waits_for_it(
    copied, tmp_path: Path, how: dict[str, Any], portions: list[int]
) -> None:
    """The last tasks read fewer: they are waited for."""
    big = table("big", *[PORTION_BYTES] * 10)
    copied(big, at_once=2, **how)
    assert sorted(big.staged) == list(range(10))
    tasks = sorted(map(int, (tmp_path / "tasks").read_text().split()), reverse=True)
    assert tasks == portions


def test_a_table_that_has_failed_is_not_read_any_further(copied) -> None:
    ended, read = copied(table("bad", *[PORTION_BYTES] * 3), table("good", SMALL))
    assert read == ["good0", "bad0"]
    assert [copy.failure is not None for copy in ended] == [False, True]


def test_what_a_task_has_not_read_is_read_by_the_next_one(copied) -> None:
    ended, read = copied(table("slow", *[PORTION_BYTES] * 5), table("small", SMALL))
    assert sorted(read) == ["slow0", "slow1", "slow2", "slow3", "slow4", "small0"]
    assert names(ended) == ["small", "slow"]


def test_a_portion_whose_session_broke_is_tried_again_some_times(copied) -> None:
    ended, read = copied(table("broken", SMALL, SMALL), table("shaken", SMALL, SMALL))
    assert sorted(names(ended)) == ["broken", "shaken"]
    assert {copy.work.name: copy.is_staged for copy in ended} == {"broken": False, "shaken": True}
    assert read.count("shaken0") == 2
    assert sum(line.startswith("broken") for line in read) == 4


def test_a_table_that_is_locked_is_tried_again_while_others_are_read(copied) -> None:
    copies = table("locked", SMALL), table("free", *[PORTION_BYTES] * 3)
    other = table("other", *[PORTION_BYTES] * 40)
    ended, read = copied(*copies, other, locked=LockedPortions(retry_s=0, patience_s=0))
    assert sorted(names(ended)) == ["free", "locked", "other"]
    failed = {copy.work.name: copy.failure is not None for copy in ended}
    assert failed == {"free": False, "locked": True, "other": False}
    assert names(ended)[-1] == "locked", "it is given up when nothing else is to be read"
    assert [line for line in read if line.startswith("free")] == [
        "free0",
        "free1",
        "free1",
        "free2",
    ]


def test_a_table_that_is_not_wanted_any_more_is_not_read(copied) -> None:
    copies = table("gone", PORTION_BYTES, PORTION_BYTES), table("good", SMALL)
    ended, read = copied(*copies, is_wanted=lambda copy: copy.work.name != "gone")
    assert (names(ended), read) == (["good"], ["good0"])


def test_what_is_staged_is_not_read_again(copied) -> None:
    done, begun = table("done", SMALL), table("begun", *[PORTION_BYTES] * 3)
    done.staged[0] = begun.staged[1] = StagedRows(rows=1)
    ended, read = copied(begun, done)
    assert (names(ended), read) == (["begun"], ["begun0", "begun2"])


def test_a_rate_delays_the_next_task(copied) -> None:
    """The second one would begin after a day: the copy is stopped before."""
    asked = itertools.count()
    ended, read = copied(
        table("big", *[PORTION_BYTES] * 2),
        rate=PORTION_BYTES / 86400,
        is_stopping=lambda: next(asked) > 5,
    )
    assert (names(ended), read) == ([], ["big0"])


def test_tables_are_not_tried_under_a_snapshot_that_is_gone(copied) -> None:
    ended, read = copied(table("gone", SMALL, SMALL), table("b", *[PORTION_BYTES] * 3))
    assert read == ["gone0"]
    assert sorted(names(ended)) == ["b", "gone"]
    assert [copy.failure is not None and copy.failure.is_lasting for copy in ended] == [True, True]


def test_a_table_that_is_locked_does_not_count_against_the_rate(copied) -> None:
    locked = LockedPortions(retry_s=1e6, patience_s=0)
    copies = table("locked", SMALL), table("good", SMALL * 2)
    ended, _ = copied(*copies, rate=SMALL / 86400, locked=locked)
    assert {copy.work.name: copy.is_staged for copy in ended} == {"good": True, "locked": False}


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_was_being_read_when_a_copy_broke_off_is_known(copied, at_once: int) -> None:
    """Whether it shared the task of what the copy broke off at, or had one of its own."""
    name = "pair" if at_once == 2 else "t"  # pairs wait for each other's tasks
    copies = [table(f"{name}{n}_", SMALL) for n in range(4)]
    noted = []

    def note(copy: TableCopy, number: int) -> None:
        noted.append((copy.work.name, number))
        if len(noted) == 1:
            raise OSError("no room for the journal")

    with pytest.raises(OSError, match="no room"):
        copied(*copies, at_once=at_once, note=note)
    staged = [copy.work.name for copy in copies if copy.is_staged]
    assert len(staged) == 2
    assert sorted(noted) == [(name, 0) for name in staged]


def test_a_copy_that_is_stopped_begins_no_task(copied) -> None:
    assert copied(table("t", SMALL), is_stopping=lambda: True) == ([], [])
