"""The table of DDL as markdown, for docs/schema-changes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.ddl.known_gaps import known_gap
from tests.support.ddl.row import Fault, Moment, Row
from tests.support.ddl.seen import Seen, fault


@dataclass(frozen=True)
class Verdict:
    """One row at one moment.

    Attributes:
        fault: None where it is as expected.
        gap: how it is known to fail; None where it should pass.
        is_sometimes: the gap does not show each time.
    """

    row: Row
    seen: Seen
    fault: Fault | None
    gap: Fault | None
    is_sometimes: bool

    @property
    def fails(self) -> bool:
        """It fails, and not in the way that is known."""
        return self.fault is not None and self.fault is not self.gap

    @property
    def is_stale(self) -> bool:
        """It passes, and a gap says that it fails."""
        return self.fault is None and self.gap is not None and not self.is_sometimes


def judge(rows: Sequence[Row], seen: Mapping[str, Seen], moment: Moment) -> list[Verdict]:
    """Every row at that moment."""
    return [
        Verdict(
            row, seen[row.name], fault(row, moment, seen[row.name]), *known_gap(row.name, moment)
        )
        for row in rows
    ]


def to_markdown(moment: Moment, verdicts: Sequence[Verdict]) -> str:
    """One moment's part of the page."""
    lines = [
        f"### {moment.value[0].upper()}{moment.value[1:]}",
        "| change | expected | seen |",
        "|---|---|---|",
    ]
    for one in verdicts:
        seen = str(one.seen)
        if one.fault is not None:
            mark = "**fails**" if one.fails else "known gap"
            seen = f"{mark}, {one.fault.value} ({seen})"
        cells = (one.row.name, one.row.outcome(moment).value, seen)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
