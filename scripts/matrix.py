"""``make matrix``: the tests that depend on the server's version, on each of 10 to 18.

    python scripts/matrix.py [VERSION ...]

Runs each area's tests with PGSLUICE_TEST_VERSION set and ends with a table: version x area,
passed or failed. Versions that cannot be had here (no npm) are skipped with a notice. Exit 1
if anything failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pgsluice.embedded import WHEEL_VERSIONS, npm

VERSIONS = (10, 11, 12, 13, 14, 15, 16, 17, 18)
AREAS = ("wire", "replication", "catalog", "capture", "types", "columnar", "verification")
_OUTCOMES = {0: "passed", 5: "-"}


def main(arguments: list[str]) -> int:
    """Run the matrix; the exit code."""
    console = Console()
    versions = [int(one) for one in arguments] or list(VERSIONS)
    table = Table("version", *AREAS)
    has_failed = False
    for version in versions:
        if version not in WHEEL_VERSIONS and (reason := npm.why_not(version)):
            console.print(f"PostgreSQL {version} is skipped: {reason}")
            continue
        outcomes = []
        for area in AREAS:
            console.print(f"PostgreSQL {version}: {area}")
            code = run(version, area)
            has_failed |= code not in _OUTCOMES
            outcomes.append(_OUTCOMES.get(code, "FAILED"))
        table.add_row(str(version), *outcomes)
    console.print(table)
    return int(has_failed)


def run(version: int, area: str) -> int:
    """One area's tests on one version; pytest's exit code."""
    folder = Path("tests") / area
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not soak", str(folder)]
    environment = {**os.environ, "PGSLUICE_TEST_VERSION": str(version)}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
