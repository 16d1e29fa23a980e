"""Which round of copies may begin a task."""

from __future__ import annotations

from pgsluice.copy import CopyPace, CopyTurns
from pgsluice.copy.turns import CopyTurn


def turn(
    turns: CopyTurns, subscription: str, connections: int, cores: int | None = None
) -> CopyTurn:
    one = turns.join(subscription, connections, lambda: connections if cores is None else cores)
    one.look()
    return one


def begun(one: CopyTurn, left_bytes: int) -> int:
    """How many tasks a round may begin now."""
    count = 0
    while one.begin(left_bytes):
        count += 1
    return count


def test_rounds_share_what_the_subscription_that_allows_the_most_allows() -> None:
    turns = CopyTurns()
    large, later, other = turn(turns, "a", 3), turn(turns, "a", 3), turn(turns, "b", 2)
    assert begun(large, 100) == 3
    assert begun(later, 200) == 0
    large.end()
    large.end()
    assert begun(other, 10) == 2
    assert begun(later, 200) == 0
    for _ in range(2):
        other.end()
    other.leave()
    large.rest()
    assert begun(later, 200) == 2


def test_the_round_with_the_least_left_begins_first() -> None:
    turns = CopyTurns()
    large, small = turn(turns, "a", 1), turn(turns, "a", 1)
    assert large.begin(1000)
    assert not small.begin(10)
    large.end()
    assert not large.begin(900), "the small one waits"
    assert small.begin(10)
    small.end()
    assert large.begin(900), "the small one does not ask"
    assert not small.begin(5)
    large.end()
    small.rest()
    assert large.begin(800), "the small one has nothing to begin for now"


def test_a_task_that_hangs_does_not_stop_the_copies_of_others() -> None:
    turns = CopyTurns()
    hangs, other, third = (turn(turns, name, connections=8, cores=1) for name in "aab")
    assert begun(hangs, 1000) == 1
    assert begun(other, 10) == 1
    assert begun(third, 5) == 0, "the cores are the stream's"
    other.end()
    third.rest()
    assert begun(other, 10) == 1


def test_nobody_waits_for_a_round_whose_subscription_allows_no_more() -> None:
    turns = CopyTurns()
    large, small = turn(turns, "a", 4), turn(turns, "b", 1)
    assert begun(small, 10) == 1
    assert begun(large, 1000) == 3


def read_at(pace: CopyPace, now: list[float], until: float) -> int:
    """How many tasks of 130 bytes begin until then, if somebody asks every half second."""
    count = 0
    while now[0] < until:
        while pace.may_begin():
            pace.begin(130)
            count += 1
        now[0] += 0.5
    return count


def test_copies_read_at_their_rate_however_seldom_they_ask() -> None:
    now = [1000.0]
    pace = CopyPace(100, clock=lambda: now[0])
    assert read_at(pace, now, until=2300.0) == 1000
    now[0] += 3600
    assert read_at(pace, now, until=now[0] + 13) <= 11, "a pause is no reason to read faster"


def test_a_task_that_could_read_nothing_does_not_count() -> None:
    now = [1000.0]
    pace = CopyPace(100, clock=lambda: now[0])
    pace.begin(130)
    pace.give_back(130)
    pace.begin(130)
    assert read_at(pace, now, until=2300.0) == 999


def test_without_a_rate_tasks_begin_at_once() -> None:
    pace = CopyPace(None)
    pace.begin(2**60)
    assert pace.may_begin()
