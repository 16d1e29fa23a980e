"""What the benchmarks say: one line a figure, the ratio first, beside what design.md aims at.

Nothing here judges: figures of a busy machine are figures of a busy machine.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- written by python -m bench --write -->", "<!-- end -->"
_HEAD = ("today", "reach", "what", "figure", "against")


@dataclass(frozen=True, slots=True)
class Line:
    """One figure.

    Attributes:
        today: the ratio, or the figure itself where there is nothing to compare it with.
        reach: what the budget in design.md, section 7, aims at; empty: it names nothing.
        what: what was measured.
        figure: in units.
        against: what the ratio is to, in the same units.
    """

    today: str
    reach: str
    what: str
    figure: str = ""
    against: str = ""

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        return self.today, self.reach, self.what, self.figure, self.against


def ratio(value: float, limit: float) -> str:
    """As ``1.52 x``."""
    return f"{value / limit:.2f} x" if value / limit < 10 else f"{value / limit:.1f} x"


def rate(rows_per_second: float) -> str:
    """As ``310 k rows/s``."""
    if rows_per_second >= 1e6:
        return f"{rows_per_second / 1e6:.2f} M rows/s"
    return f"{rows_per_second / 1e3:.0f} k rows/s"


def table(lines: Iterable[Line]) -> str:
    """A Markdown table, its columns aligned."""
    rows = [_HEAD, *(line.cells() for line in lines)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]

    def line(cells: Iterable[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def setting(rows: int, server: str) -> str:
    """On what the figures were taken."""
    names = ("pyspark", "deltalake", "pyarrow", "numpy", "psycopg")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"{rows:,} rows, {len(os.sched_getaffinity(0))} cores for everything, PostgreSQL {server}, "
        f"Python {platform.python_version()}, {packages}"
    )


def write(lines: Iterable[Line], where: str) -> None:
    """Put the table into ``docs/benchmarks.md``, in place of the last one."""
    page = PAGE.read_text()
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n{where}.\n\n{table(lines)}\n{_END}{after}")
