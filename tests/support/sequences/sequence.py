"""A sequence of statements on one table: drawn by its seed, run as a row of the table of DDL.

The draw depends on nothing but the seed, the sequence's number, the moment and the server's major
version, so that a failure can be repeated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.support.ddl.row import IN_TRANSACTIONS, Moment, Outcome, Publisher, Row

APART = frozenset({Moment.SEVERAL_POLLS, Moment.CAPTURE_ONLY, Moment.PROMOTION})
"""Moments that lie between transactions: a sequence has several there."""


@dataclass(frozen=True)
class Step:
    """One statement, or a few with which the server does one thing.

    Attributes:
        text: its SQL; ``{t}`` is the table.
        ends: its transaction ends behind it.
        is_copied: a rule of docs/schema-changes.md sends the table to a copy.
    """

    text: str
    ends: bool = True
    is_copied: bool = False


@dataclass(frozen=True)
class Drawn:
    """One sequence.

    Attributes:
        name: says its area, seed and number; the table has it too.
        setup: makes the table and its first rows. It does so without any part but the first one,
            too.
        before, after: changes before the first step and after the last one.
        tables: those whose targets are judged.
        first: those that there are before the first step; None: the same.
        publications: the server's that the set-up makes, for ``Publisher.SERVER``.
    """

    name: str
    setup: tuple[str, ...]
    steps: tuple[Step, ...]
    before: str = ""
    after: str = ""
    tables: tuple[str, ...] = ("{t}",)
    first: tuple[str, ...] | None = None
    publisher: Publisher = Publisher.PGSLUICE
    publications: tuple[str, ...] = ("{t}",)

    @property
    def is_copied(self) -> bool:
        """Whether a rule sends one of its statements to a copy."""
        return any(step.is_copied for step in self.steps)

    @property
    def transactions(self) -> tuple[str, ...]:
        """The steps' texts, those of a transaction in one."""
        texts: list[str] = []
        is_new = True
        for step in self.steps:
            texts[len(texts) :] = [step.text] if is_new else [f"{texts.pop()}; {step.text}"]
            is_new = step.ends
        return tuple(texts)

    def row(self) -> Row:
        """As a row of the table of DDL; it has to be equal in the end."""
        return Row(
            self.name,
            self.transactions,
            Outcome.EQUAL,
            setup=";\n".join(self.setup),
            before=self.before,
            after=self.after,
            tables=self.tables,
            first=self.first,
            publisher=self.publisher,
            publications=self.publications,
        )

    def named(self, name: str) -> Drawn:
        """The same statements for a table of another name."""
        return replace(self, name=name)

    def sql(self) -> str:
        """To be pasted: all of it, transaction by transaction."""
        row = self.row()
        parts = [
            "-- tables, and their first copy",
            f"{row.setup};",
            *(["-- changes", f"{self.before};"] if self.before else []),
            "-- the sequence, one transaction a line",
            *(f"BEGIN; {text.strip()}; COMMIT;" for text in self.transactions),
            *(["-- changes", f"{self.after};"] if self.after else []),
        ]
        return "\n".join(part.strip().replace("{t}", "t") for part in parts)


Draw = Callable[[int, int, Moment, int], Drawn]
"""A sequence of a seed, a number, a moment, and the server's major version."""


def moments(version: int) -> list[Moment]:
    """When sequences can run on a server of that major version."""
    row = Row("any", ("",), Outcome.EQUAL, moments=frozenset(Moment))
    return [moment for moment in Moment if row.runs_at(moment, version)]


def ends_of_transactions(dice: Random, count: int, moment: Moment) -> list[bool]:
    """Which of so many steps end a transaction: all together, each alone, or as it falls."""
    if moment in IN_TRANSACTIONS | {Moment.ROLLED_BACK}:
        return [True] * count  # the moment puts them into one
    kind = dice.random()
    if kind < 0.3 and moment not in APART:
        return [False] * (count - 1) + [True]
    if kind < 0.65:
        return [True] * count
    return [dice.random() < 0.5 for _ in range(count - 1)] + [True]


def pick(dice: Random, weights: Sequence[tuple[float, str]]) -> str:
    """One of some names, by weight."""
    (name,) = dice.choices([name for _, name in weights], [weight for weight, _ in weights])
    return name
