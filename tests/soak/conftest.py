"""What soak tests share: the pipeline, a seed, and the page that they write."""

from __future__ import annotations

import os
import random

import pytest
from tests.soak.report import WITHOUT_SPARK, Report
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import Pipeline
from tests.support.pipeline import pipeline as pipeline

_IS_LOCAL = os.environ.get("PGSLUICE_SOAK_ENGINE") == "local"
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
