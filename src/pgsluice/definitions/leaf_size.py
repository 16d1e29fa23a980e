"""The size of a leaf partition of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeafSize:
    """A leaf partition; a plain table is its own leaf.

    Attributes:
        size_bytes: its size with its TOAST table, without indexes.
        pages: the pages of the table itself, without TOAST.
        is_readable: our role can query the leaf itself, and sees all of its rows.
        is_heap: its access method is heap: a row's ctid has its page, so no row is after the last
            page.
    """

    oid: int
    namespace: str
    name: str
    size_bytes: int
    pages: int
    is_readable: bool = True
    is_heap: bool = True
