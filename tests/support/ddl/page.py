"""The table of DDL as markdown: what a run has shown, and the page docs/schema-changes.md.

The page says what the table asks for and what is known to be missing; ``make soak AREA=ddl``
shows that both are so. ``python -m tests.support.ddl.page`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.ddl.known_gaps import known_gap
from tests.support.ddl.row import UNDONE, Fault, Moment, Outcome, Publisher, Row
from tests.support.ddl.seen import Seen, fault
from tests.support.ddl.table import ROWS

PAGE = Path(__file__).parents[3] / "docs" / "schema-changes.md"
_HEAD = """# Schema changes: what pgsluice does
Each row of the tables below is a schema change of a table, type, domain or publication (`t`). Other
changes happen before, between and after its statements. In the end the target has to equal the
source. The second column has the outcome:

| outcome | meaning |
|---|---|
| nothing | the target stays as it is; no row is read again |
| added | the target gets the column, old rows get their value; nothing is copied |
| in place | nothing is copied |
| verified | pgsluice compares the table with the source, finds it equal, and does not copy it |
| replaced | pgsluice replaces only the rows of partitions that were added or removed |
| copied | the stream does not carry enough, so pgsluice copies the table again automatically |
| equal | equal in the end; whether pgsluice copies the table depends on which states it saw |
| parked | replication of the table pauses; `pgsluice status` shows the reason and what to do |

While pgsluice copies a table again, the log and `pgsluice status` show the reason. The JSON of
`status` keeps the last reason in `copy_reason`.

The third column has known gaps. "Differs and says nothing" is the worst one: the target differs
without a message. After such a change, copy the table: `pgsluice copy CONFIG TABLE`.

With `publish_via_partition_root` of the server's publications, changes have the name of the
partition root. The stream does not show which partition a row was in. If a partition is created,
filled and dropped (or detached) before pgsluice reads the catalog, its rows stay at the target.
`pgsluice verify` finds them.

pgsluice identifies columns by their attribute numbers. A column that is added, written and renamed
before pgsluice reads the catalog keeps its values without a copy. Two changes of a column that the
target already has lead to a copy:

- A rename: the target gets the new column with all its values.
- Another column under the name of a dropped or renamed one, unless a comparison finds no
  difference.

Entries of `rename` ([names.md](names.md)) are about the names that the source has now. A table or
column that is renamed at the source keeps no entry of its old name: the target has the new name, or
what an entry gives to the new name. Such a table is copied from the source. If a change gives a
table or column a name that `rename` gives to another one, the table is parked until the name is
free.

Each change is tested at several moments: within one poll of the catalog, over several polls, while
everything is stopped, while only `pgsluice capture` runs, in the transaction of other changes, in a
streamed and prepared transaction, in a commit that waits for a synchronous standby, across a
promotion, and during a copy of the table before and after the copy has its lock. A change that is
rolled back to a savepoint, or lost by a promotion, does nothing. `make soak AREA=ddl` runs each row
at each moment and compares every table with EXCEPT ALL both ways.
"""
_PUBLISHERS = {
    Publisher.PGSLUICE: "Publications made by pgsluice",
    Publisher.SERVER: "The server's own publications",
    Publisher.OURS: "A subscription's own publications",
}
_SHOWN = 160


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


def schema_changes() -> str:
    """The page docs/schema-changes.md."""
    lines = [_HEAD.rstrip()]
    for publisher, title in _PUBLISHERS.items():
        lines += ["", f"## {title}", "| change | outcome | not yet |", "|---|---|---|"]
        lines += [_line(row) for row in ROWS if row.publisher is publisher]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    statements = "; ".join(" ".join(text.split()).rstrip(";") for text in row.ddl)
    statements = statements.replace("{t}", "t").replace("|", "\\|")
    if len(statements) > _SHOWN:
        statements = f"{statements[:_SHOWN]} …"
    outcome = row.expected.value
    if row.expected is Outcome.PARKED:
        outcome += f": “{row.words}”"
    if row.since > Row.since:
        outcome += f" (from PostgreSQL {row.since} on)"
    return f"| {row.name}: `{statements}` | {outcome} | {_missing(row)} |"


def _missing(row: Row) -> str:
    """Where the row fails today, by fault."""
    moments: dict[Fault, list[Moment]] = {}
    possible = [m for m in Moment if m in row.moments and m not in UNDONE]
    at_times = ""
    for moment in Moment:
        gap, is_sometimes = known_gap(row.name, moment)
        at_times = " at times" if is_sometimes else ""
        if gap is not None and moment in row.moments:
            moments.setdefault(gap, []).append(moment)
    return "; ".join(
        f"{gap.value}{at_times}"
        if set(at) >= set(possible)
        else f"{gap.value}: {', '.join(moment.value for moment in at)}"
        for gap, at in moments.items()
    )


if __name__ == "__main__":
    PAGE.write_text(schema_changes())
