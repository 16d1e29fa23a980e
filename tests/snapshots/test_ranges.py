"""How a table is divided into portions, from sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest

from pgsluice.definitions.source_tables import LeafSize
from pgsluice.snapshots.ranges import Division, Portion, divide_table


def leaf(oid: int, size_bytes: int, pages: int, *, is_readable: bool = True) -> LeafSize:
    return LeafSize(oid, "public", f"leaf_{oid}", size_bytes, pages, is_readable)


def divided(
    *leaves: LeafSize,
    is_partitioned: bool = False,
    by_pages: bool = True,
    at_once: int = 1,
    key_bounds: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> tuple[Portion, ...]:
    oid, division = 99 if is_partitioned else leaves[0].oid, Division(1000, at_once)
    return divide_table(oid, leaves, division, by_pages=by_pages, key_bounds=key_bounds)


def conditions(portions: tuple[Portion, ...]) -> list[str]:
    return [read.condition.replace("::pg_catalog.tid", "") for part in portions for read in part]


def test_a_small_table_is_one_portion() -> None:
    ((read,),) = divided(leaf(1, 1000, 10))
    assert (read.leaf, read.size_bytes) == (None, 1000)
    assert conditions(divided(leaf(1, 1000, 10))) == ["ctid < '(10,0)'"]
    assert conditions(divided(leaf(1, 0, 0))) == ["ctid < '(0,0)'"]
    assert conditions(divided(leaf(1, 1000, 10), by_pages=False)) == [""]


def test_ranges_of_pages_meet_and_the_last_one_ends_with_the_file() -> None:
    portions = divided(leaf(1, 3500, 40))
    assert conditions(portions) == [
        "ctid < '(10,0)'",
        "ctid >= '(10,0)' AND ctid < '(20,0)'",
        "ctid >= '(20,0)' AND ctid < '(30,0)'",
        "ctid >= '(30,0)' AND ctid < '(40,0)'",
    ]
    assert all(len(portion) == 1 for portion in portions)


def test_the_last_range_is_open_where_a_place_is_not_that_of_a_page() -> None:
    """Other access methods number their rows as they like."""
    other = LeafSize(1, "public", "t", 3500, 40, is_heap=False)
    assert conditions(divided(other))[-1] == "ctid >= '(30,0)'"
    small = LeafSize(1, "public", "t", 100, 4, is_heap=False)
    assert conditions(divided(small)) == [""]
    unreadable = leaf(2, 1000, 50, is_readable=False)
    through_root = conditions(divided(other, unreadable, is_partitioned=True))
    assert through_root[-1] == "ctid >= '(40,0)'"


@pytest.mark.parametrize(("at_once", "count"), [(1, 7), (2, 8), (3, 9), (4, 8), (7, 7), (8, 7)])
def test_tasks_side_by_side_get_as_many_ranges(at_once: int, count: int) -> None:
    assert len(divided(leaf(1, 6500, 70), at_once=at_once)) == count
    assert len(divided(leaf(1, 1000, 70), at_once=at_once)) == 1


def test_a_table_of_few_pages_with_large_values_has_a_range_for_each() -> None:
    assert len(divided(leaf(1, 10**6, 3))) == 3


def test_small_leaves_share_portions_and_large_ones_are_divided() -> None:
    leaves = [leaf(1, 400, 4), leaf(2, 500, 5), leaf(3, 2000, 20), leaf(4, 0, 0)]
    portions = divided(*leaves, is_partitioned=True)
    names = [[read.leaf.name for read in portion if read.leaf] for portion in portions]
    assert names == [["leaf_1", "leaf_2"], ["leaf_3"], ["leaf_3", "leaf_4"]]


@pytest.mark.parametrize("by_pages", [True, False])
def test_leaves_that_the_role_may_not_read_are_read_through_the_table(by_pages: bool) -> None:
    leaves = [leaf(1, 3000, 30), leaf(2, 1000, 10, is_readable=False)]
    portions = divided(*leaves, is_partitioned=True, by_pages=by_pages)
    assert {read.leaf for portion in portions for read in portion} == {None}
    assert len(portions) == (4 if by_pages else 1)
    assert sum(read.size_bytes for portion in portions for read in portion) == 4000


def test_ranges_of_a_key() -> None:
    bounds = {1: ("id < 5", "id >= 5")}
    by_key = divided(leaf(1, 3000, 30), by_pages=False, key_bounds=bounds)
    assert conditions(by_key) == ["id < 5", "id >= 5"]
    assert conditions(divided(leaf(1, 3000, 30), by_pages=False)) == [""]
