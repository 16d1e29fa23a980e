"""What an executor loads, and what only the driver of a subscription loads, are two sets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pgsluice.copy.job import CopyTables
from pgsluice.copy.renamed import CopyRenamed
from pgsluice.subscription.batches.tasks.apply import ApplyTables
from pgsluice.subscription.batches.tasks.shared_batch import SharedBatch
from pgsluice.subscription.running.daemon import LOADED

DRIVERS = (
    "psycopg",
    "pgsluice.catalog",
    "pgsluice.published",
    "pgsluice.replication.session",
    "pgsluice.subscription.copies",
    "pgsluice.subscription.lifecycle",
    "pgsluice.subscription.refresh",
    "pgsluice.subscription.verifying",
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules of a worker before its first task."""
    code = (
        "import importlib, sys\n"
        f"for name in {LOADED!r}: importlib.import_module(name)\n"
        "print(*sys.modules)"
    )
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


@pytest.mark.parametrize("package", DRIVERS)
def test_an_executor_does_not_load(package: str, loaded: set[str]) -> None:
    assert {name for name in loaded if f"{name}.".startswith(f"{package}.")} == set()


@pytest.mark.parametrize("job", [ApplyTables, SharedBatch, CopyTables, CopyRenamed])
def test_what_a_task_is_pickled_as_is_loaded_before_it(job: type, loaded: set[str]) -> None:
    assert job.__module__ in loaded
