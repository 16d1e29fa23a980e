"""What a rule can say about a change of a table's definition."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pgsluice.errors import Remedy, TableError


@dataclass(frozen=True, slots=True)
class Same:
    """The target can take what comes as it is."""


@dataclass(frozen=True, slots=True)
class AddColumns:
    """The target needs more columns; they are NULL in the rows that it has.

    Attributes:
        fields: in order.
    """

    fields: tuple[pa.Field, ...]


@dataclass(frozen=True, slots=True)
class CopyAgain:
    """The stream does not tell what became of the rows, so that they have to be copied.

    Attributes:
        why: a sentence for people.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Rows may have changed without the stream telling, or nothing has: only their comparison
    can tell.

    Attributes:
        why: a sentence for people.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Park:
    """A user has to decide.

    Attributes:
        why: a sentence for people.
        hint: what to do.
        column: the column that the rule is about; None: the whole table.
    """

    why: str
    hint: str
    column: str | None = None


Verdict = Same | AddColumns | CopyAgain | Park
"""What can be said of a target; of a look at the source :class:`Verify` too."""


def raise_unless_possible(verdict: Verdict, table: str) -> tuple[pa.Field, ...]:
    """The columns to add, if the verdict lets the table's changes be applied.

    Raises:
        TableError: it does not; the error's remedy is the verdict's.
    """
    match verdict:
        case Same():
            return ()
        case AddColumns():
            return verdict.fields
        case CopyAgain():
            raise TableError(verdict.why, remedy=Remedy.COPY, table=table)
        case Park():
            facts = {} if verdict.column is None else {"column": verdict.column}
            raise TableError(
                verdict.why, hint=verdict.hint, remedy=Remedy.PARK, table=table, **facts
            )
