"""What differences of a table at the source between two catalog refreshes mean for its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Same:
    """The target needs nothing."""


@dataclass(frozen=True, slots=True)
class ColumnsAdded:
    """The source's table has new columns; the target gets them.

    Attributes:
        values: column -> the value of rows that are older than the column, as text; None: NULL.
    """

    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ReplacePartitions:
    """Replace the rows of partitions that were attached or removed with rows; the target keeps all
    others.

    Attributes:
        came: the OIDs of new partitions.
        gone: the OIDs of removed or replaced partitions and of the leaves below them -> SQL
            conditions on the rows that they can have had or have.
        verify: why to compare the target with the source afterwards; empty: do not.
    """

    came: frozenset[int] = frozenset()
    gone: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    verify: str = ""


@dataclass(frozen=True, slots=True)
class CopyAgain:
    """The stream does not carry the change of the rows, so the table has to be copied."""

    why: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Rows may have changed without changes in the stream; only a comparison can tell."""

    why: str


SourceVerdict = Same | ColumnsAdded | ReplacePartitions | CopyAgain | Verify
