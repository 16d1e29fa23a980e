"""The fold: its result does not depend on how events are divided, or folded again."""

from __future__ import annotations

import random

import pytest

from pgsluice.rejects.events import Event, Kind
from pgsluice.rejects.fold import Reject, TableRejects

OID = 7


def folded(stored: list[Reject], events: list[Event], after: int | None) -> list[Reject]:
    """All rejects after a fold."""
    table = TableRejects(OID, "public", "t", stored)
    table.fold(events, after)
    by_identity = {each.identity: each for each in (*stored, *table.changed)}
    result = [by_identity[identity] for identity in sorted(by_identity)]
    assert table.open_count == sum(each.is_open for each in result)
    return result


def drawn(rng: random.Random, count: int) -> list[Event]:
    """Events of some rows, one or two a position."""
    events = []
    for number in range(1, count + 1):
        key, column = rng.choice("abc"), rng.choice(["x", "y"])
        kind = rng.choices(
            [Kind.REJECTED, Kind.FITS, Kind.GONE, Kind.MOVED, Kind.EMPTIED], [6, 3, 2, 2, 1]
        )[0]
        position, ordinal = 10 * (number // 2 + 1), number
        match kind:
            case Kind.REJECTED:
                event = Event(position, ordinal, kind, key, column, rng.choice(["inf", "-inf"]))
            case Kind.FITS:
                event = Event(position, ordinal, kind, key, column)
            case Kind.MOVED:
                event = Event(position, ordinal, kind, key, column, rng.choice("abc"))
            case Kind.GONE:
                event = Event(position, ordinal, kind, key)
            case _:
                event = Event(position, ordinal, kind)
        events.append(event)
    return events


@pytest.mark.parametrize("seed", range(40))
def test_divided_and_repeated(seed: int) -> None:
    rng = random.Random(seed)
    events = drawn(rng, 24)
    whole = folded([], events, 0)
    # In pieces, some of them again and again, also after later ones.
    ends = [*sorted(rng.sample(range(10, 130, 10), 3)), 1000]
    stored: list[Reject] = []
    done: list[tuple[int, int]] = []
    after = 0
    for end in ends:
        done.append((after, end))
        for begin, last in [(after, end), *rng.sample(done, rng.randint(0, len(done)))]:
            stored = folded(stored, [e for e in events if begin < e.position <= last], begin)
        after = end
    assert stored == whole


def test_a_copy_resolves_what_it_does_not_repeat() -> None:
    events = [
        Event(10, 1, Kind.REJECTED, "a", "x", "inf"),
        Event(10, 2, Kind.REJECTED, "b", "x", "inf"),
        Event(10, 3, Kind.REJECTED, "c", "x", "inf"),
    ]
    stored = folded([], events, 0)
    copy = [
        Event(50, 0, Kind.COPIED),
        Event(50, 1, Kind.REJECTED, "a", "x", "inf"),
        Event(50, 1, Kind.REJECTED, "c", "x", "-inf"),
    ]
    once = folded(stored, copy, None)
    found = [(each.key, each.position, each.resolved_position, each.text) for each in once]
    assert found == [
        ("a", 10, None, "inf"),
        ("b", 10, 50, "inf"),
        ("c", 10, 50, "inf"),
        ("c", 50, None, "-inf"),
    ]
    assert folded(once, copy, None) == once


def test_a_value_that_is_sent_again_is_no_second_reject() -> None:
    events = [
        Event(10, 1, Kind.REJECTED, "a", "x", "inf"),
        Event(20, 1, Kind.REJECTED, "a", "x", "inf"),
    ]
    assert len(folded([], events, 0)) == 1
