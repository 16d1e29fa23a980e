"""The tables in ``docs/matrix.md`` and ``docs/spark-versions.md``: the last results.

A run replaces the cells that it ran and keeps the others, so a table can be filled in parts. Each
cell has the number of its run in parentheses; the list below the table has the date, the machine
and the revision of each run. Runs without a cell are dropped. A cell that was never run is empty.
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
SPARK_PAGE = ROOT / "docs" / "spark-versions.md"
_BEGIN, _END = "<!-- {}: written by python scripts/matrix.py --write -->", "<!-- end -->"
_SOURCES = ("src", "tests", "requirements.lock")
"""What a result depends on."""

Cells = dict[tuple[str, str], tuple[str, str]]
"""A result and the name of its run, by area and version."""


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
    table: str,
    found: Mapping[tuple[str, str], str],
    run: str,
    areas: Sequence[str],
    versions: Sequence[str],
    page: Path = PAGE,
) -> None:
    """Write cells into one of a page's tables.

    Args:
        table: ``postgresql``, ``python`` or ``spark``.
        found: results by area and version.
        run: the run's name, from :func:`this_run`.
        areas, versions: the table's lines and columns, in order; other cells are dropped.
        page: where the table is.
    """
    begin = _BEGIN.format(table)
    before, _, rest = page.read_text().partition(begin)
    inside, _, after = rest.partition(_END)
    cells = parse(inside) | {place: (text, run) for place, text in found.items()}
    lines = format_table(cells, areas, versions)
    page.write_text("\n".join([before + begin, *lines, _END]) + after)


def parse(text: str) -> Cells:
    """The cells of a table that :func:`format_table` wrote; no cells for any other text."""
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
                cells[area, version] = (named[1], runs[named[2]])
    return cells


def format_table(cells: Cells, areas: Sequence[str], versions: Sequence[str]) -> list[str]:
    """The lines of the table and of the list of its runs, oldest first."""
    shown = {at: cell for at, cell in cells.items() if at[0] in areas and at[1] in versions}
    numbers = {run: number for number, run in enumerate(sorted({r for _, r in shown.values()}), 1)}

    def cell(area: str, version: str) -> str:
        if (area, version) not in shown:
            return ""
        text, run = shown[area, version]
        return f"{text} ({numbers[run]})"

    return [
        "",
        "| area | " + " | ".join(versions) + " |",
        "|---" * (len(versions) + 1) + "|",
        *(
            f"| {area} | " + " | ".join(cell(area, one) for one in versions) + " |"
            for area in areas
        ),
        "",
        *(f"{number}. {run}" for run, number in numbers.items()),
    ]
