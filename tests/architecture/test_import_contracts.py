"""The import contracts of pyproject.toml refuse what they are there to refuse.

A copy of the package gets one forbidden import at a time; import-linter then has to report
exactly the contract that forbids it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = "Rooms import downward only"
WIRE = "wire imports the standard library only"
SPARK = "Only spark, copy, subscription and what starts them import Spark"
FOLDERS_OF_PUBLICATION = "Inside publication, folders import downward only"
FOLDERS_OF_FILTERS = "Inside row_filter, folders import downward only"
FOLDERS_OF_SUBSCRIPTION = "Inside subscription, folders import downward only"
TASKS = "Tasks of batches know nothing of the driver"
FOLDERS_OF_SPARK = "Inside spark, folders import downward only"
FOLDERS_OF_SINKS = "Inside sinks, formats of tables stand on what they share"
FOLDERS_OF_DELTA = "Inside sinks/delta, the log is below what writes it"
FOLDERS_OF_LAKE = "Inside sinks/lake, merges are above keys, and keys above versions"
FOLDERS_OF_CONFIG = "Inside config, values are below keys and sections"
FOLDERS_OF_PREFLIGHT = "Inside preflight, checks compare facts and gather none"
FORMATS = "What formats of tables share knows none of their libraries"
FOLDERS_OF_SPOOL = "Inside spool, folders import downward only"
ROW_FILTER = "Row filters are used through their package only"
PUBLICATION = "Publications are used through their package only"
VERIFICATION = "verification shares nothing with the decoder"

FORBIDDEN = [
    (LAYERS, "types/datetimes.py", "import pgsluice.catalog.tables.keys"),
    (LAYERS, "a_new_room/__init__.py", ""),
    (WIRE, "wire/messages.py", "import numpy"),
    (SPARK, "publication/statements/syntax.py", "import pyspark"),
    (ROW_FILTER, "publication/statements/syntax.py", "import pgsluice.row_filter.nodes"),
    (
        FOLDERS_OF_PUBLICATION,
        "publication/statements/parse.py",
        "import pgsluice.publication.publishing.resolution",
    ),
    (FOLDERS_OF_FILTERS, "row_filter/parse/syntax.py", "import pgsluice.row_filter.bind.binder"),
    (
        FOLDERS_OF_SUBSCRIPTION,
        "subscription/base/options.py",
        "import pgsluice.subscription.refresh.naming",
    ),
    (TASKS, "subscription/batches/tasks/apply.py", "import pgsluice.subscription.batches.results"),
    (FOLDERS_OF_SPARK, "spark/jobs/tasks.py", "import pgsluice.spark.session.master"),
    (FOLDERS_OF_SINKS, "sinks/contract.py", "import pgsluice.sinks.target"),
    (FOLDERS_OF_DELTA, "sinks/delta/log/layout.py", "import pgsluice.sinks.delta.upkeep"),
    (FOLDERS_OF_LAKE, "sinks/lake/keys/entries.py", "import pgsluice.sinks.lake.upkeep"),
    (FOLDERS_OF_CONFIG, "config/values/dsn.py", "import pgsluice.config.section"),
    (FOLDERS_OF_PREFLIGHT, "preflight/slot.py", "import pgsluice.preflight.gathering.tables"),
    (FORMATS, "sinks/lake/edit.py", "import deltalake"),
    (FOLDERS_OF_SPOOL, "spool/records/record.py", "import pgsluice.spool.segments.block"),
    (PUBLICATION, "preflight/__init__.py", "import pgsluice.publication.statements.syntax"),
    (VERIFICATION, "verification/digest.py", "import pgsluice.types"),
    (PUBLICATION, "copy/job.py", "import pgsluice.publication.statements.syntax"),
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``src/pgsluice`` beside the project's configuration."""
    folder = tmp_path_factory.mktemp("contracts")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "src" / "pgsluice", folder / "src" / "pgsluice")
    return folder / "src" / "pgsluice"


def broken_contracts(package: Path) -> set[str]:
    """Run import-linter on the copy; the names of the contracts that it reports as broken."""
    folder = package.parents[1]
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(package.parent), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    names = re.findall(r"^(.*) (KEPT|BROKEN)", done.stdout, re.MULTILINE)
    assert names, done.stdout + done.stderr
    return {name for name, verdict in names if verdict == "BROKEN"}


def test_the_package_keeps_all_contracts(package: Path) -> None:
    assert broken_contracts(package) == set()


@pytest.mark.parametrize(("contract", "module", "line"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract_and_no_other(
    package: Path, contract: str, module: str, line: str
) -> None:
    path = package / module
    before = path.read_text() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{before or ''}\n{line}\n")
    try:
        assert broken_contracts(package) == {contract}
    finally:
        if before is None:
            shutil.rmtree(path.parent)
        else:
            path.write_text(before)


def test_every_contract_is_broken_once() -> None:
    names = re.findall(
        r'^\[\[tool\.importlinter\.contracts\]\]\nname = "(.*)"$',
        (ROOT / "pyproject.toml").read_text(),
        re.MULTILINE,
    )
    assert set(names) == {contract for contract, _, _ in FORBIDDEN}
