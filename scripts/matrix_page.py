"""The table in ``docs/matrix.md``: what was run last, version by version and area by area.

A run replaces the cells that it ran and leaves the others, so the table can be filled in parts.
Each cell names its run by a number in parentheses, and the list below the table says when, on
what machine and at which revision that was. Runs that no cell names any more are dropped. A cell
that was never run is empty.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "matrix.md"
_BEGIN, _END = "<!-- written by python scripts/matrix.py --write -->", "<!-- end -->"
_SOURCES = ("src", "tests", "requirements.lock")
"""What a result depends on; the page itself may differ from its revision."""

Cells = dict[tuple[str, int], tuple[str, str]]
"""What was found, and the run that found it, by area and version."""


def this_run() -> str:
    """The day, the machine and the revision of the tests that are about to run."""
    revision = _git("rev-parse", "--short", "HEAD") or "an unknown revision"
    changed = " with changes" if _git("status", "--porcelain", "--", *_SOURCES) else ""
    return f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, at {revision}{changed}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def write(
    found: Mapping[tuple[str, int], str], run: str, areas: Sequence[str], versions: Sequence[int]
) -> None:
    """Put cells into the page's table.

    Args:
        found: texts by area and version.
        run: of :func:`this_run`.
        areas, versions: all that the table has, in order; cells of others are dropped.
    """
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    inside, _, after = rest.partition(_END)
    cells = parse(inside) | {place: (text, run) for place, text in found.items()}
    lines = format_table(cells, areas, versions)
    PAGE.write_text("\n".join([before + _BEGIN, *lines, _END]) + after)


def parse(text: str) -> Cells:
    """The cells of a table that :func:`format_table` made; none of anything else."""
    runs = dict(re.findall(r"^(\d+)\. (.+)$", text, re.MULTILINE))
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ] or [[], []]
    cells: Cells = {}
    for area, *row in rows:
        for version, cell in zip(header[1:], row, strict=True):
            if named := re.fullmatch(r"(.+) \((\d+)\)", cell):
                cells[area, int(version)] = (named[1], runs[named[2]])
    return cells


def format_table(cells: Cells, areas: Sequence[str], versions: Sequence[int]) -> list[str]:
    """The table's lines and those of its runs, oldest first."""
    shown = {at: cell for at, cell in cells.items() if at[0] in areas and at[1] in versions}
    numbers = {run: number for number, run in enumerate(sorted({r for _, r in shown.values()}), 1)}

    def cell(area: str, version: int) -> str:
        if (area, version) not in shown:
            return ""
        text, run = shown[area, version]
        return f"{text} ({numbers[run]})"

    return [
        "",
        "| area | " + " | ".join(map(str, versions)) + " |",
        "|---" * (len(versions) + 1) + "|",
        *(
            f"| {area} | " + " | ".join(cell(area, one) for one in versions) + " |"
            for area in areas
        ),
        "",
        *(f"{number}. {run}" for run, number in numbers.items()),
    ]
