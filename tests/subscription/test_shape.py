"""Which changes of a table's shape have it copied again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.subscription.shape import (
    Shape,
    came,
    is_renamed,
    is_rewritten,
    is_sent_again,
    is_widened,
    went,
)

ACTIONS = frozenset({"insert", "truncate"})
BEFORE = Shape({7: 100}, {"id": 1, "a": 1}, {"id": 1, "a": 2}, ACTIONS)


def test_it_travels_as_text() -> None:
    assert Shape.parse(BEFORE.to_text()) == BEFORE
    assert Shape.parse("") is None
    # As it was written before columns had their numbers in it: nothing is known of them.
    old = Shape.parse('{"filenodes":{"7":100},"columns":{"id":1,"a":1}}')
    assert old is not None
    assert not is_renamed(old, BEFORE)
    assert not is_widened(old, BEFORE)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"id": 1, "a": 2}, False),
        ({"id": 1, "a": 2, "b": 3}, False),  # added
        ({"id": 1}, False),  # dropped
        ({"id": 1, "b": 3}, False),  # dropped, and another added
        ({"id": 1, "b": 2}, True),  # renamed
        ({"id": 1, "a": 3}, True),  # dropped, and added again
        ({"id": 2, "a": 1}, True),  # names swapped
    ],
)
def test_a_column_is_its_number(numbers: dict[str, int], expected: bool) -> None:
    now = Shape(BEFORE.filenodes, dict.fromkeys(numbers, 1), numbers, ACTIONS)
    assert is_renamed(BEFORE, now) is expected


def test_a_new_file_and_a_new_definition_are_a_rewrite() -> None:
    def now(file: int, version: int) -> Shape:
        return Shape({7: file}, {"id": 1, "a": version}, BEFORE.numbers, ACTIONS)

    assert is_rewritten(BEFORE, now(101, 2))
    assert not is_rewritten(BEFORE, now(101, 1))  # VACUUM FULL
    assert not is_rewritten(BEFORE, now(100, 2))  # a longer varchar


def test_actions_that_were_not_sent_have_been_missed() -> None:
    more = replace(BEFORE, actions=ACTIONS | {"update"})
    assert is_widened(BEFORE, more)
    assert not is_widened(more, BEFORE)
    assert not is_widened(more, more)


def test_partitions_come_and_go() -> None:
    now = Shape({8: 1, 7: 100}, BEFORE.columns, BEFORE.numbers, ACTIONS)
    assert (came(BEFORE, now), went(BEFORE, now)) == ({8}, set())
    assert (came(now, BEFORE), went(now, BEFORE)) == (set(), {8})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({7, 8}, {7, 8}, False),
        ({7}, {7, 8}, True),  # 8 was there, and what changed in it did not come
        ({7, 8}, {7}, False),
        ({7, 8}, {7, 8, 9}, False),  # a new partition: `came` judges it
        (set(), {7, 8}, False),  # not known: from a record of before
    ],
)
def test_a_leaf_that_is_sent_again(before: set[int], now: set[int], expected: bool) -> None:
    leaves = {7: 100, 8: 100}
    was = replace(BEFORE, filenodes=leaves, sent=frozenset(before))
    assert is_sent_again(was, replace(was, sent=frozenset(now))) is expected
    assert Shape.parse(was.to_text()) == was
