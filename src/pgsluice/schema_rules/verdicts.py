"""The possible decisions about a change of a table's definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pgsluice.errors import ParkReason, Remedy, TableError


@dataclass(frozen=True, slots=True)
class Same:
    """The target can take the changes without a change of its own."""


@dataclass(frozen=True, slots=True)
class AddColumns:
    """The target needs more columns; they are NULL in its existing rows."""

    fields: tuple[pa.Field, ...]


@dataclass(frozen=True, slots=True)
class ColumnsAdded:
    """The source's table has new columns; the target gets them.

    Attributes:
        values: column -> the value of rows that are older than the column, as text; None: NULL.
    """

    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Widen:
    """The target's column needs a wider type; its existing values do not change."""

    field: pa.Field


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Ignore the column: the source's table no longer has it, and the target never had it."""


@dataclass(frozen=True, slots=True)
class LookFirst:
    """Only a catalog refresh can tell what the change means for the target's rows."""

    why: str


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


@dataclass(frozen=True, slots=True)
class Park:
    """Park the table: a user has to decide.

    Attributes:
        column: the column concerned; None: the whole table.
        reason: the reason, if a catalog refresh can detect its end.
    """

    why: str
    hint: str
    column: str | None = None
    reason: ParkReason | None = None


SourceVerdict = Same | ColumnsAdded | ReplacePartitions | CopyAgain | Verify
"""The decisions about a table at the source."""
Verdict = Same | AddColumns | ColumnsAdded | Widen | LeaveOut | LookFirst | CopyAgain | Park
"""The decisions about a target."""


def raise_unless_possible(verdict: Verdict, table: str) -> tuple[pa.Field, ...]:
    """The columns to add or widen; raises if the decision does not allow to apply the table's
    changes.

    Raises:
        TableError: it does not allow that; the error has the decision's recovery action.
    """
    match verdict:
        case Same() | ColumnsAdded() | LeaveOut():
            return ()
        case AddColumns():
            return verdict.fields
        case Widen():
            return (verdict.field,)
        case LookFirst():
            raise TableError(verdict.why, remedy=Remedy.LOOK, table=table)
        case CopyAgain():
            raise TableError(verdict.why, remedy=Remedy.COPY, table=table)
        case Park():
            named = {"column": verdict.column, "reason": verdict.reason}
            facts = {name: fact for name, fact in named.items() if fact is not None}
            raise TableError(
                verdict.why, hint=verdict.hint, remedy=Remedy.PARK, table=table, **facts
            )
