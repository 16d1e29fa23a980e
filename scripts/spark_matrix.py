"""The versions of Spark: an environment for each, as on a platform, and tests/soak/test_sparks.py.

An environment first gets its PySpark, as a platform would have it, and then the wheel of this
revision with the extras ``delta`` and ``stores``, which must leave PySpark as it is. The
environments stay in ``.cache/matrix``: with ``PGSLUICE_SPARK_PYTHON``, other soaks use them.
``PYTEST_ADDOPTS="-k stream"`` chooses tests; results of the others stay in the docs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import matrix_page
from rich.console import Console
from rich.table import Table

SPARKS = ("3.5", "4.0", "4.1", "4.2", "4.3")
ROWS = {
    "test_data_sources_in_python": '`format("pgoutput")` is possible',
    "test_filters_reach_the_server": "filters of a query reach the server",
    "test_limits_of_batches": "limits of a batch, several batches with `availableNow`",
    "test_run_local": "`run` on `local[2]`",
    "test_run_on_a_standalone_master": "`run` and `check` on a standalone master",
    "test_stream_of_the_readme": "the stream of the README",
}
"""The lines of the table, by the test that fills them."""
_FEATURES = [*ROWS][:3]
"""Tests that only ask what a version has."""
ROOT = Path(__file__).parents[1]
_FOLDER = ROOT / ".cache" / "matrix"
_EXTRAS = "delta,stores"
_UV = str(Path(sys.executable).with_name("uv"))

Cells = Mapping[str, str]


def run_sparks(console: Console, versions: Iterable[str], written: str | None) -> bool:
    """Run the tests with each version; prints a table.

    Args:
        written: the run's name in the docs; None to write nothing.

    Returns:
        whether all have passed.
    """
    wheel = _build_wheel()
    columns: dict[str, Cells] = {}
    for version in versions:
        found = _make_environment(version, wheel)
        if found is None:
            console.print(f"Spark {version} is skipped: there is no PySpark {version}")
            continue
        python, exact = found
        cells = _run(python)
        columns[exact] = cells
        console.print(f"PySpark {exact}: {', '.join(cells.values())}", markup=False)
        if written:
            matrix_page.write(
                "spark",
                {(ROWS[test], version): text for test, text in cells.items()},
                f"{written}, PySpark {exact}",
                [*ROWS.values()],
                SPARKS,
                matrix_page.SPARK_PAGE,
            )
    table = Table("", *columns)
    for test, title in ROWS.items():
        table.add_row(title, *(cells.get(test, "") for cells in columns.values()))
    console.print(table)
    return all(
        not text.startswith("FAILED") for cells in columns.values() for text in cells.values()
    )


def _build_wheel() -> Path:
    with tempfile.TemporaryDirectory() as folder:
        build = [_UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", folder]
        subprocess.run([*build, "--python", sys.executable, str(ROOT)], cwd=ROOT, check=True)
        (built,) = Path(folder).glob("*.whl")
        _FOLDER.mkdir(parents=True, exist_ok=True)
        return built.rename(_FOLDER / built.name)


def _make_environment(version: str, wheel: Path) -> tuple[Path, str] | None:
    """The Python of a version's environment and its exact version; None: there is no PySpark."""
    folder = _FOLDER / f"spark{version}"
    python = folder / "bin" / "python"
    install = [_UV, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run(
        [_UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True
    )
    # Platforms have pandas and pyarrow, which their PySpark imports.
    platform = [*install, f"pyspark=={version}.*", "pandas<3", "pyarrow"]
    if subprocess.run(platform, check=False).returncode:
        return None
    before = _pyspark(python)
    subprocess.run(
        [*install, "--reinstall-package", "pgsluice", f"pgsluice[{_EXTRAS}] @ {wheel.as_uri()}"],
        check=True,
    )
    if (after := _pyspark(python)) != before:
        raise SystemExit(f"pgsluice[{_EXTRAS}] has replaced PySpark {before} by {after}")
    return python, after


def _pyspark(python: Path) -> str:
    code = "from importlib.metadata import version; print(version('pyspark'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _run(python: Path) -> Cells:
    with tempfile.TemporaryDirectory(prefix="pgsluice-matrix-") as reports:
        report = Path(reports) / "report.xml"
        module = ROOT / "tests" / "soak" / "test_sparks.py"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:randomly"]
        subprocess.run(
            [*command, f"--junitxml={report}", "--no-header", str(module)],
            cwd=ROOT,
            env={**os.environ, "PGSLUICE_SPARK_PYTHON": str(python)},
            check=False,
        )
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        found = {str(case.get("name")): _text(case) for case in cases}
    return {test: found[test] for test in ROWS if test in found} or dict.fromkeys(ROWS, "FAILED")


def _text(case: ElementTree.Element) -> str:
    is_feature = case.get("name") in _FEATURES
    if case.find("failure") is not None or case.find("error") is not None:
        return "FAILED"
    if case.find("skipped") is not None:
        return "no" if is_feature else "not possible"
    return "yes" if is_feature else "passed"
