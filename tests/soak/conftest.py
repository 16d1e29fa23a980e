"""What soak tests share: the pipeline, a seed, and the page that they write."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.soak.report import SPOOL_IN_STORE, WITHOUT_SPARK, Report
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import Pipeline
from tests.support.pipeline import pipeline as pipeline

_IS_LOCAL = os.environ.get("PGSLUICE_SOAK_ENGINE") == "local"
_LOCAL_RUN = """
import sys
import pytest
from pgsluice.cli.app import run_command
from pgsluice.system.freed_memory import keep_freed_memory
from tests.support.local_spark import use_local_spark
use_local_spark(pytest.MonkeyPatch())
keep_freed_memory()  # as a worker does, since it does a worker's work
sys.exit(run_command(sys.argv[1:]))
"""
_MERGE = os.environ.get("PGSLUICE_SOAK_MERGE")


@pytest.fixture
def seed() -> int:
    """Of all that is drawn; the environment may give an earlier one again."""
    given = os.environ.get("PGSLUICE_SOAK_SEED")
    return int(given) if given else random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    """The page's part of the test's module: tests/soak/test_<area>.py."""
    area = request.module.__name__.rpartition("test_")[2]
    suffix = WITHOUT_SPARK if _IS_LOCAL else ""
    suffix += ", spool in the store" if SPOOL_IN_STORE and area == "stores" else ""
    return Report(area, suffix=f"{suffix}, merge = {_MERGE}" if _MERGE else suffix)


@pytest.fixture(autouse=True)
def way_of_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pipeline's, where the environment names one."""
    if _MERGE:
        monkeypatch.setattr(Pipeline, "sink_options", f', merge = "{_MERGE}"')


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> None:
    """Spark; with ``PGSLUICE_SOAK_ENGINE=local``, tasks run in this process."""
    request.getfixturevalue("local_spark" if _IS_LOCAL else "spark")


@pytest.fixture(autouse=True)
def runs_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``PGSLUICE_SOAK_ENGINE=local``, also programs run their tasks in their own process."""
    if _IS_LOCAL:
        monkeypatch.setattr(Pipeline, "start", _start_locally)


def _start_locally(
    one: Pipeline, command: str = "run", *options: str, **environment: str
) -> subprocess.Popen[bytes]:
    if command == "run":
        options = (*one.run_options, *options)
    with (one.folder / "run.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _LOCAL_RUN, command, str(one.path), *options],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    one.processes.append(process)
    return process
