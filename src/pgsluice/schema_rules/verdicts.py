"""What a rule can say about a change of a table's definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pgsluice.errors import ParkReason, Remedy, TableError


@dataclass(frozen=True, slots=True)
class Same:
    """The target can take what comes as it is."""


@dataclass(frozen=True, slots=True)
class AddColumns:
    """The target needs more columns; they are NULL in the rows that it has."""

    fields: tuple[pa.Field, ...]


@dataclass(frozen=True, slots=True)
class ColumnsAdded:
    """The source's table has new columns; the target gets them.

    Attributes:
        values: column -> its value, as text, in rows from before it was added; None: NULL.
    """

    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Widen:
    """The target's column needs a wider type; the values that it has stay as they are."""

    field: pa.Field


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """The source's table has this column no longer, and the target never had it."""


@dataclass(frozen=True, slots=True)
class LookFirst:
    """Only a look at the catalog can say what the change means for the rows of the target."""

    why: str


@dataclass(frozen=True, slots=True)
class ReplacePartitions:
    """Partitions came with rows, or went with theirs: the target follows, and keeps all other rows.

    Attributes:
        came: the OIDs of those that came.
        gone: the OIDs of those that went, or are others now, and of the leaves below them -> which
            rows they may have had and may have: each condition is SQL.
        verify: why the target has to be compared with the source afterwards; empty: it need not.
    """

    came: frozenset[int] = frozenset()
    gone: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    verify: str = ""


@dataclass(frozen=True, slots=True)
class CopyAgain:
    """The stream does not tell what became of the rows, so that they have to be copied."""

    why: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Rows may have changed without the stream telling, or nothing has: only their comparison
    can tell.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Park:
    """A user has to decide.

    Attributes:
        column: the column that the rule is about; None: the whole table.
        reason: if a look can see that it has ended.
    """

    why: str
    hint: str
    column: str | None = None
    reason: ParkReason | None = None


SourceVerdict = Same | ColumnsAdded | ReplacePartitions | CopyAgain | Verify
"""What can be said of a table at the source."""
Verdict = Same | AddColumns | ColumnsAdded | Widen | LeaveOut | LookFirst | CopyAgain | Park
"""What can be said of a target."""


def raise_unless_possible(verdict: Verdict, table: str) -> tuple[pa.Field, ...]:
    """The columns to add or widen, if the verdict lets the table's changes be applied.

    Raises:
        TableError: it does not; the error's remedy is the verdict's.
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
