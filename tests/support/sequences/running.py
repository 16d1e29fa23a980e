"""Runs sequences as a batch of the table of DDL, judges them, and shrinks those that fail."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from tests.support.databases import Database
from tests.support.ddl.batch import Compare, run_rows
from tests.support.ddl.row import DURING_COPIES, FIRST_COPIES, Fault, Moment
from tests.support.ddl.seen import Seen, TargetSeen, fault
from tests.support.pipeline import MakePipeline
from tests.support.sequences.sent import compare_sent
from tests.support.sequences.sequence import Drawn

MOST_SHRUNK = 8
"""Sequences of a batch that are shrunk; the others are printed as they are."""
COPIED_ANYWAY = DURING_COPIES | FIRST_COPIES | {Moment.UNCONFIRMED, Moment.LOST}
"""Moments at which a copy says nothing of the sequence."""
_SAME_BUT_FOR_CASE = """
SELECT n.nspname || '.' || c.relname FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
WHERE attnum > 0 AND NOT attisdropped AND c.relkind IN ('r', 'p')
GROUP BY 1, lower(attname) HAVING count(*) > 1
"""
_MAY_BE_PARKED = {"differ only by upper and lower case": _SAME_BUT_FOR_CASE}
"""Words of a reason -> the tables that may be parked for it, as the catalog is in the end."""
Parked = dict[str, set[str]]
_NUMBERS = re.compile(r"\S*t_[cpu]\d\w*|\b\d[\d/A-F]*\b|“[^”]*”|\"[^\"]*\"")


@dataclass(frozen=True)
class Verdict:
    """One sequence that ran.

    Attributes:
        fault: None where it is right: its targets are equal, or parked for a reason that is true.
    """

    drawn: Drawn
    seen: Seen
    fault: Fault | None

    @property
    def is_copied_for_nothing(self) -> bool:
        """No rule of docs/schema-changes.md sends one of its statements to a copy."""
        is_copied = any(target.copies for target in self.first)
        return is_copied and not self.drawn.is_copied and self.fault is None

    @property
    def first(self) -> list[TargetSeen]:
        """The targets that there were before."""
        row = self.drawn.row()
        titles = {f"public.{row.sql(table)}" for table in row.first or row.tables}
        return [target for target in self.seen.targets if target.title in titles]


RunDrawn = Callable[[Sequence[Drawn]], list[Verdict]]


def run_drawn(
    pipeline: MakePipeline,
    source: Callable[[], Database],
    drawn: Sequence[Drawn],
    moment: Moment,
    compare: Compare = compare_sent,
) -> list[Verdict]:
    """Run sequences at one moment, those of each publisher in a fresh database.

    Args:
        source: makes the database.
        compare: compares a target with its table.
    """
    of_publishers = defaultdict(list)
    for one in drawn:
        of_publishers[one.publisher].append(one)
    return [
        verdict
        for some in of_publishers.values()
        for verdict in _run_batch(pipeline, source(), some, moment, compare)
    ]


def _run_batch(
    pipeline: MakePipeline,
    source: Database,
    drawn: Sequence[Drawn],
    moment: Moment,
    compare: Compare,
) -> list[Verdict]:
    rows = [one.row() for one in drawn]
    seen = run_rows(pipeline, source, rows, moment, compare)
    parked = {
        words: {str(title) for (title,) in source.execute(query)}
        for words, query in _MAY_BE_PARKED.items()
    }
    return [
        Verdict(one, seen[one.name], _fault(one, moment, seen[one.name], parked)) for one in drawn
    ]


def _fault(drawn: Drawn, moment: Moment, seen: Seen, parked: Parked) -> Fault | None:
    rest = [
        target
        for target in seen.targets
        if not any(
            words in (target.error or "") and target.title in titles
            for words, titles in parked.items()
        )
    ]
    return fault(drawn.row(), moment, replace(seen, targets=tuple(rest)))


def shrink(run: RunDrawn, failed: Sequence[Verdict]) -> list[Verdict]:
    """Leave out of each sequence what its fault does not need; a round tries all at once."""
    best = {verdict.drawn.name: _of_its_root(verdict) for verdict in failed[:MOST_SHRUNK]}
    open_ = set(best)
    number = 0
    while open_:
        tried: dict[str, list[Drawn]] = {}
        for name in sorted(open_):
            tried[name] = []
            for drawn in _smaller(best[name].drawn):
                number += 1
                tried[name].append(drawn.named(f"{name}_{number}"))
        found = {
            one.drawn.name: one for one in run([one for each in tried.values() for one in each])
        }
        for name, candidates in tried.items():
            smaller = [found[c.name] for c in candidates if found[c.name].fault is best[name].fault]
            if smaller:
                best[name] = min(smaller, key=lambda one: len(one.drawn.sql()))
            else:
                open_.remove(name)
    return [*best.values(), *failed[MOST_SHRUNK:]]


def _of_its_root(verdict: Verdict) -> Verdict:
    """Without other targets, where its own is wrong: what is left out may have made those."""
    is_wrong = any(target.difference or target.error for target in verdict.first)
    tables = verdict.drawn.first if is_wrong and verdict.drawn.first else verdict.drawn.tables
    return replace(verdict, drawn=replace(verdict.drawn, tables=tables))


def _smaller(drawn: Drawn) -> Iterator[Drawn]:
    """The sequence without one thing."""
    steps = drawn.steps
    for number in range(len(steps)):
        if len(steps) > 1:
            yield replace(drawn, steps=(*steps[:number], *steps[number + 1 :]))
        parts = steps[number].text.split("; ")
        for part in range(len(parts) if len(parts) > 1 else 0):
            text = "; ".join((*parts[:part], *parts[part + 1 :]))
            yield replace(
                drawn,
                steps=(*steps[:number], replace(steps[number], text=text), *steps[number + 1 :]),
            )
    for name in ("before", "after"):
        if getattr(drawn, name):
            yield replace(drawn, **{name: ""})
    for number in range(1, len(drawn.setup)):
        yield replace(drawn, setup=(*drawn.setup[:number], *drawn.setup[number + 1 :]))


@dataclass
class Tally:
    """What batches have shown.

    Attributes:
        plain: sequences that no rule sends to a copy, at moments that copy nothing anyway.
        reasons: why such were copied.
    """

    ran: int = 0
    parked: int = 0
    plain: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, verdicts: Sequence[Verdict], moment: Moment) -> None:
        """Count a batch."""
        self.ran += len(verdicts)
        self.parked += sum(bool(one.seen.errors) and one.fault is None for one in verdicts)
        if moment in COPIED_ANYWAY:
            return
        for one in verdicts:
            self.plain += not one.drawn.is_copied
            if one.is_copied_for_nothing:
                reason = next(target.reason for target in one.first if target.copies)
                short = _NUMBERS.sub("…", reason)
                self.reasons[short] += 1
                self.examples.setdefault(short, one.drawn.sql())

    @property
    def copied(self) -> int:
        """How many were copied although no rule asks for it."""
        return self.reasons.total()

    @property
    def share(self) -> float:
        """Of those that no rule sends to a copy."""
        return self.copied / max(self.plain, 1)

    def is_above(self, share: float) -> bool:
        """Whether more than this share of all sequences is copied, which chance does not explain.

        A moment has a hundred plain sequences: of a tenth, up to 19 may be drawn. All moments
        together are compared by a test of the page.
        """
        deviation = sqrt(share * (1 - share) * self.plain)
        return self.copied > share * self.plain + 3 * deviation

    @property
    def figures(self) -> str:
        """For the page."""
        return f"{self.ran:,} sequences of 2 to 6 statements and changes between them"

    @property
    def shown(self) -> str:
        """For the page."""
        parked = f", {self.parked} parked with a reason that is true" * bool(self.parked)
        copied = f"; {self.copied} of {self.plain} copied without a rule" * bool(self.plain)
        return f"equal{parked}{copied}"

    def __str__(self) -> str:
        lines = [f"{self.copied} of {self.plain} copied without a rule ({self.share:.0%})"]
        for reason, count in self.reasons.most_common():
            lines += [f"{count} x {reason}", self.examples[reason]]
        return "\n".join(lines)


def render(verdict: Verdict, moment: Moment, version: int) -> str:
    """A failure, to be pasted."""
    return (
        f"-- {verdict.drawn.name}, {moment.value}, PostgreSQL {version}:"
        f" {verdict.fault.value if verdict.fault else 'right'}: {verdict.seen}\n"
        f"{verdict.drawn.sql()}\n"
    )
