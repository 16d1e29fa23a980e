"""The table of docs/reliability.md: what a soak test showed, area by area.

A row is written when its test begins (as not passed) and again when it ended, so that a run
that was cut off does not leave an older success standing. Other areas' rows stay.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
HEAD = """# Reliability: results of the full tests
Written by `make soak` (`make soak AREA=main` for one area), with real servers, real Spark and
SIGKILL. Every row has its seed: `PGSLUICE_SOAK_SEED=<seed> make soak AREA=<area>` kills the same
processes at the same moments. The server decides: each target table is loaded back into the source
and compared there by EXCEPT ALL in both directions, and also by row counts and hashes. `make test`
runs the same tests with small figures.

A row "without Spark" is of a run whose copies and batches were applied in the test's own process
(`PGSLUICE_SOAK_ENGINE=local`). Servers, capture, looks at the catalog, planning, applying and
targets are the real ones. Such runs show what depends on the server's version: its catalog and its
stream. What depends on Spark is shown by the rows of PostgreSQL 18.

A row "merge = on_read" is of a run whose Delta tables were all merged so
(`PGSLUICE_SOAK_MERGE=on_read`). The others used the default, which merges small tables on write.
"""
WITHOUT_SPARK = ", without Spark"
SPOOL_IN_STORE = os.environ.get("PGSLUICE_SOAK_SPOOL") == "store"
"""Of the soak of stores: their rows say so."""
COLUMNS = ("what", "figures", "shown", "seed", "took", "when, where")


class Report:
    """One area's rows.

    Args:
        area: the part of the tests, a heading of the page.
        page: the file.
        suffix: says of all rows how they were run.
    """

    def __init__(self, area: str, page: Path = PAGE, suffix: str = "") -> None:
        self.area = area
        self.page = page
        self.suffix = suffix

    @contextmanager
    def row(self, what: str, seed: int) -> Iterator[dict[str, str]]:
        """One line; the block fills in ``figures`` and ``shown``."""
        what += self.suffix
        line = {"figures": "", "shown": "", "seed": str(seed)}
        self._write(what, {**line, "shown": "**not passed**", "took": "", "when, where": _where()})
        began = time.monotonic()
        try:
            yield line
        except BaseException:
            self._write(
                what, {**line, "shown": "**not passed**", "took": "", "when, where": _where()}
            )
            raise
        took = f"{time.monotonic() - began:.0f} s"
        self._write(what, {**line, "took": took, "when, where": _where()})

    def _write(self, what: str, line: dict[str, str]) -> None:
        # Another run may write a row of its own meanwhile.
        with self.page.open("a") as page:
            fcntl.flock(page, fcntl.LOCK_EX)
            areas = read_page(self.page)
            areas.setdefault(self.area, {})[what] = [what, *(line[name] for name in COLUMNS[1:])]
            self.page.write_text(format_page(areas))


def read_page(page: Path) -> dict[str, dict[str, list[str]]]:
    """Area -> what -> the row's cells."""
    areas: dict[str, dict[str, list[str]]] = {}
    area = ""
    for line in page.read_text().splitlines() if page.exists() else []:
        if line.startswith("## "):
            area = line[3:]
        elif area and line.startswith("| ") and not line.startswith(f"| {COLUMNS[0]} |"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            areas.setdefault(area, {})[cells[0]] = cells
    return areas


def format_page(areas: dict[str, dict[str, list[str]]]) -> str:
    """The whole page."""
    lines = [HEAD.rstrip()]
    for area in sorted(areas):
        lines += ["", f"## {area}", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        for row in areas[area].values():
            cells = (re.sub(r"[|\n]", " ", cell) for cell in row)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _where() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    day = datetime.now(UTC).date().isoformat()
    return f"{day}, {commit or 'no commit'}, {os.cpu_count()} cores, {platform.machine()}"
