"""How large a leaf of a table is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeafSize:
    """A leaf of a table; a plain table is its own leaf.

    Attributes:
        size_bytes: with its TOAST table, without indexes.
        pages: of the table itself, without TOAST.
        is_readable: our role may query the leaf itself, and sees all of its rows.
        is_heap: its rows' places are those in its file, so none lies behind its last page.
    """

    oid: int
    namespace: str
    name: str
    size_bytes: int
    pages: int
    is_readable: bool = True
    is_heap: bool = True
