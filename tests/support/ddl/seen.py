"""What was seen of a row's targets, and whether it is what the row expects."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.ddl.row import Fault, Moment, Outcome, Row


@dataclass(frozen=True)
class TargetSeen:
    """One target.

    Attributes:
        copies: how often it was copied since the first look.
        added: columns that it did not have.
        error: why its table is parked.
        difference: from the source; empty when equal.
        is_missing: there is none.
        reason: why it was copied again, or rows of it were read again.
    """

    title: str
    copies: int = 0
    added: tuple[str, ...] = ()
    error: str | None = None
    difference: str = ""
    is_missing: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Seen:
    """All targets of a row.

    Attributes:
        others: what is wrong with targets that should stand still or not be there.
        failure: the error of a statement that the source refused.
    """

    targets: tuple[TargetSeen, ...] = ()
    others: tuple[str, ...] = ()
    failure: str = ""

    @property
    def is_copied(self) -> bool:
        return any(target.copies for target in self.targets)

    @property
    def errors(self) -> list[str]:
        """Of parked tables, in one line each."""
        return [target.error.splitlines()[0] for target in self.targets if target.error]

    @property
    def added(self) -> list[str]:
        return [name for target in self.targets for name in target.added]

    @property
    def differences(self) -> list[str]:
        """Of tables that are not parked."""
        found = [
            f"{target.title} {target.difference or 'has no target'}"
            for target in self.targets
            if not target.error and (target.difference or target.is_missing)
        ]
        return [*found, *self.others]

    def __str__(self) -> str:
        if self.failure:
            return f"the source refused: {self.failure}"
        done = ["copied"] if self.is_copied else []
        done += [f"added {', '.join(self.added)}"] if self.added else []
        done += [f"parked: {error}" for error in self.errors]
        done += [f"WRONG: {difference}" for difference in self.differences]
        return "; ".join(done) or "nothing"


def fault(row: Row, moment: Moment, seen: Seen) -> Fault | None:
    """How what was seen is not what the row expects; None where it is."""
    expected = row.outcome(moment)
    if seen.failure:
        return Fault.REFUSED
    if expected is Outcome.PARKED:
        fits = any(re.search(row.words, error) for error in seen.errors)
        return None if fits else Fault.NOT_PARKED
    if seen.errors:
        return Fault.PARKED
    if seen.differences:
        is_missing = any(target.is_missing for target in seen.targets)
        return Fault.NO_TARGET if is_missing else Fault.DIFFERS
    if expected in (Outcome.EQUAL, Outcome.REPLACED):
        return None  # a target does not tell which rows were replaced; looks do
    if expected is Outcome.COPIED:
        return None if seen.is_copied else Fault.NOT_COPIED
    if seen.is_copied:
        return Fault.COPIED
    if expected is Outcome.ADDED and not seen.added:
        return Fault.NOT_ADDED
    # A verification leaves no trace at the target but that it was not copied.
    return Fault.ADDED if expected is Outcome.NOTHING and seen.added else None
