"""What a filter may name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """A column that a filter may name; ``collation`` None is its type's own."""

    name: str
    type_oid: int
    typmod: int = -1
    collation: int | None = None
