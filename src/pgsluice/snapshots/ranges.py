"""Divides a table's copy into portions of about equal size, which tasks read side by side.

A large leaf is divided by its pages. The last range ends where the file ended when the portions
were planned: that was after the snapshot, so what lies behind it, the snapshot does not see. A file
that was rewritten before or after is refused by each reader. Only of a heap is the place of a row
that of a page; of other access methods the last range has no end. Small leaves share a portion.
Where the server cannot find pages (before 14), or our role may not ask for them, the primary key
divides. This module is pure.

Its figure: a copy to Delta, at least 0.6 times the rate of COPY to /dev/null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.definitions.leaf_size import LeafSize

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
    leaves: Sequence[LeafRows],
    division: Division,
    *,
    is_partitioned: bool,
    by_pages: bool,
    key_bounds: Sequence[str] = (),
) -> tuple[Portion, ...]:
    """The portions of a table, which together have each of its rows once.

    Args:
        leaves: all of the table; a plain table is its own leaf.
        is_partitioned: its leaves are not the table itself.
        by_pages: a range of pages can be read without the others.
        key_bounds: the same of the table as of a leaf, if its leaves cannot be read themselves.
    """
    if not all(rows.leaf.is_readable for rows in leaves):
        # The rights on the table are those that count for a query of it.
        return _through_the_table([rows.leaf for rows in leaves], by_pages, key_bounds, division)
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
        conditions = _page_ranges(leaf.pages, min(count, leaf.pages), has_end=leaf.is_heap)
    named = leaf if is_named else None
    return [Read(named, condition, leaf.size_bytes // len(conditions)) for condition in conditions]


def _through_the_table(
    leaves: Sequence[LeafSize], by_pages: bool, key_bounds: Sequence[str], division: Division
) -> tuple[Portion, ...]:
    """Ranges of the table: each has the same pages, or keys, of every leaf."""
    all_bytes = sum(leaf.size_bytes for leaf in leaves)
    ranges: Sequence[str] = key_bounds or [""]
    if by_pages:
        pages = max(leaf.pages for leaf in leaves)
        has_end = all(leaf.is_heap for leaf in leaves)
        ranges = _page_ranges(pages, min(division.ranges(all_bytes), pages), has_end=has_end)
    return tuple((Read(None, condition, all_bytes // len(ranges)),) for condition in ranges)


def _page_ranges(pages: int, count: int, *, has_end: bool) -> list[str]:
    """Conditions that each row fulfils exactly one of, on about as many pages each."""
    bounds = [_first_row(pages * number // count) for number in range(1, count)]
    starts = ["", *(f"ctid >= {bound}" for bound in bounds)]
    ends = [f"ctid < {bound}" for bound in bounds]
    ends.append(f"ctid < {_first_row(pages)}" if has_end else "")
    return [" AND ".join(filter(None, both)) for both in zip(starts, ends, strict=True)]


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
