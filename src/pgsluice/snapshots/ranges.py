"""Divides a table's copy into portions of about equal size, which tasks read side by side.

A large leaf is divided by its pages, and the last range of pages has no end, so that the ranges
have every row whatever its size becomes meanwhile. Small leaves share a portion. Where the server
cannot find pages (before 14), a leaf is divided by its primary key. This module is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pgsluice.catalog import LeafSize

PORTION_BYTES = 64 * 2**20
"""What one task reads at least, if the table has as much: a few seconds of work."""


@dataclass(frozen=True, slots=True)
class LeafRows:
    """A leaf, and what divides its rows.

    Attributes:
        key_bounds: conditions on its key that each row fulfils exactly one of; empty: its pages
            are to be divided, or nothing is known that could.
    """

    leaf: LeafSize
    key_bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """One COPY: rows of a table.

    Attributes:
        leaf: the leaf that is named in the query; None: the table itself.
        condition: which rows, as SQL; empty: all.
        size_bytes: about how much is read.
        is_of_gone: it has all rows where partitions had some that are gone.
    """

    leaf: LeafSize | None = None
    condition: str = ""
    size_bytes: int = 0
    is_of_gone: bool = False


Portion = tuple[Read, ...]
"""What one task reads of a table, and stages together."""


def size_bytes(portion: Portion) -> int:
    """About how much of the source a portion reads."""
    return sum(read.size_bytes for read in portion)


WHOLE: tuple[Portion, ...] = ((Read(size_bytes=PORTION_BYTES),),)
"""A table in one portion, of a size that is not known."""


@dataclass(frozen=True, slots=True)
class Division:
    """Into how many ranges rows are divided.

    Attributes:
        most_bytes: about how large a range is at most.
        at_once: how many ranges are read side by side, at most. Each of these tasks gets as many
            ranges as the others: else the last ones are waited for.
    """

    most_bytes: int
    at_once: int = 1

    def ranges(self, size_bytes: int) -> int:
        """Of rows of this size."""
        count = -(-size_bytes // self.most_bytes)
        side_by_side = max(1, min(count, self.at_once))
        return -(-count // side_by_side) * side_by_side


def divide_table(
    leaves: Sequence[LeafRows], division: Division, *, is_partitioned: bool, by_pages: bool
) -> tuple[Portion, ...]:
    """The portions of a table, which together have each of its rows once.

    Args:
        leaves: all of the table; a plain table is its own leaf.
        is_partitioned: its leaves are not the table itself.
        by_pages: the server finds a range of pages without reading the others.
    """
    if not all(rows.leaf.is_readable for rows in leaves):
        # The rights on the table are those that count for a query of it.
        return _through_the_table([rows.leaf for rows in leaves], by_pages, division)
    reads = [
        read
        for rows in leaves
        for read in _divide_leaf(rows, by_pages, division, is_named=is_partitioned)
    ]
    return _gathered(reads, division.most_bytes) or WHOLE


def _divide_leaf(
    rows: LeafRows, by_pages: bool, division: Division, *, is_named: bool
) -> list[Read]:
    leaf = rows.leaf
    count = division.ranges(leaf.size_bytes)
    conditions: Sequence[str] = [""]
    if rows.key_bounds:
        conditions = rows.key_bounds
    elif by_pages:
        conditions = _page_ranges(leaf.pages, min(count, leaf.pages))
    named = leaf if is_named else None
    return [Read(named, condition, leaf.size_bytes // len(conditions)) for condition in conditions]


def _through_the_table(
    leaves: Sequence[LeafSize], by_pages: bool, division: Division
) -> tuple[Portion, ...]:
    """Ranges of the table: each has the same pages of every leaf."""
    all_bytes = sum(leaf.size_bytes for leaf in leaves)
    if not by_pages:
        return ((Read(size_bytes=all_bytes),),)
    pages = max(leaf.pages for leaf in leaves)
    ranges = _page_ranges(pages, min(division.ranges(all_bytes), pages))
    return tuple((Read(None, condition, all_bytes // len(ranges)),) for condition in ranges)


def _page_ranges(pages: int, count: int) -> list[str]:
    """Conditions that each row fulfils exactly one of, on about as many pages each."""
    starts = [pages * number // count for number in range(1, count)]
    if not starts:
        return [""]
    return [
        f"ctid < {_first_row(starts[0])}",
        *(
            f"ctid >= {_first_row(start)} AND ctid < {_first_row(end)}"
            for start, end in pairwise(starts)
        ),
        f"ctid >= {_first_row(starts[-1])}",
    ]


def _first_row(page: int) -> str:
    return f"'({page},0)'::pg_catalog.tid"


def _gathered(reads: Sequence[Read], most_bytes: int) -> tuple[Portion, ...]:
    """Small reads together, in their order."""
    portions: list[list[Read]] = []
    gathered_bytes = 0
    for read in reads:
        gathered_bytes += read.size_bytes
        if not portions or gathered_bytes > most_bytes:
            portions.append([])
            gathered_bytes = read.size_bytes
        portions[-1].append(read)
    return tuple(map(tuple, portions))
