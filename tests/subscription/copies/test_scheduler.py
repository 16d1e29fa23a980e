"""Which copy run may begin a task."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tests.support.local_spark import LocalSession, context_of
from tests.support.waiting import HANGS_S

from pgsluice.config import SubscriptionConfig
from pgsluice.subscription.copies.scheduler import CopyRate, CopyScheduler, CopySlots


@dataclass
class Tables:
    """Of a subscription to whose tables nothing is applied."""

    is_streaming: bool = False


class Copies:
    """The copy runs of a run, whose Spark has so many cores."""

    def __init__(self, cores: int) -> None:
        session = LocalSession()
        session.defaultParallelism = cores
        self._scheduler = CopyScheduler(context_of(session))
        self._shares = {}
        for name in "ab":
            sink = {"type": "delta", "path": "/lake/{table}"}
            settings = SubscriptionConfig.model_validate({"name": name, "sink": sink})
            self._shares[name] = self._scheduler.share(settings, Tables())

    def run(self, subscription: str, connections: int) -> CopySlots:
        return self._shares[subscription].join(connections)


def begun(slots: CopySlots, left_bytes: int) -> list[CopySlots]:
    """The tasks that a copy run may begin now, each by what its end releases."""
    slots.has_ended_task = False  # it has taken their results
    tasks = []
    while slots.acquire(left_bytes, 0):
        tasks.append(slots)
    return tasks


def test_copy_runs_share_what_the_subscription_that_allows_the_most_allows() -> None:
    copies = Copies(cores=3)
    large, later, other = copies.run("a", 3), copies.run("a", 3), copies.run("b", 2)
    first, second, _ = begun(large, 100)
    assert not begun(later, 200)
    first.release()
    second.release()
    of_other = begun(other, 10)
    assert len(of_other) == 2
    assert not begun(later, 200)
    for task in of_other:
        task.release()
    other.leave()
    large.rest()
    assert len(begun(later, 200)) == 2


def test_the_copy_run_with_the_least_left_begins_first() -> None:
    copies = Copies(cores=1)
    large, small = copies.run("a", 1), copies.run("a", 1)
    (task,) = begun(large, 1000)
    assert not begun(small, 10)
    task.release()
    assert not begun(large, 900), "the small one waits"
    (task,) = begun(small, 10)
    small.rest()
    task.release()
    (task,) = begun(large, 900)
    assert not begun(small, 5), "the connection is taken"
    task.release()
    small.rest()
    assert begun(large, 800), "the small one has nothing to begin for now"


def test_a_task_that_hangs_does_not_stop_the_copies_of_others() -> None:
    copies = Copies(cores=1)
    hangs, other, third = (copies.run(name, 8) for name in "aab")
    assert len(begun(hangs, 1000)) == 1
    (task,) = begun(other, 10)
    assert not begun(third, 5), "the cores are the stream's"
    task.release()
    third.rest()
    assert len(begun(other, 10)) == 1


def test_nobody_waits_for_a_copy_run_whose_subscription_allows_no_more() -> None:
    copies = Copies(cores=4)
    large, small = copies.run("a", 4), copies.run("b", 1)
    assert len(begun(small, 10)) == 1
    assert len(begun(large, 1000)) == 3


def test_who_waits_begins_as_soon_as_another_task_ends() -> None:
    copies = Copies(cores=1)
    first, second = copies.run("a", 1), copies.run("a", 1)
    (task,) = begun(first, 10)
    first.rest()
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(second.acquire(10, HANGS_S)))
    thread.start()
    task.release()
    thread.join()
    assert got == [True]


def test_who_waits_is_told_that_a_task_of_its_own_has_ended() -> None:
    """It has results to take before it begins another one."""
    large = Copies(cores=2).run("a", 2)
    task, _ = begun(large, 1000)
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(large.acquire(900, HANGS_S)))
    thread.start()
    task.release()
    thread.join()
    assert got == [False]


def read_at(rate: CopyRate, now: list[float], until: float) -> int:
    """How many tasks of 130 bytes begin until then, if somebody asks every half second."""
    count = 0
    while now[0] < until:
        while not rate.wait_s():
            rate.begin(130)
            count += 1
        now[0] += 0.5
    return count


def test_copies_read_at_their_rate_however_seldom_they_ask() -> None:
    now = [1000.0]
    rate = CopyRate(100, clock=lambda: now[0])
    assert read_at(rate, now, until=2300.0) == 1000
    now[0] += 3600
    assert read_at(rate, now, until=now[0] + 13) <= 11, "a pause is no reason to read faster"


def test_a_task_that_could_read_nothing_does_not_count() -> None:
    now = [1000.0]
    rate = CopyRate(100, clock=lambda: now[0])
    rate.begin(130)
    rate.give_back(130)
    rate.begin(130)
    assert read_at(rate, now, until=2300.0) == 999


def test_without_a_rate_tasks_begin_at_once() -> None:
    rate = CopyRate(None)
    rate.begin(2**60)
    assert not rate.wait_s()
