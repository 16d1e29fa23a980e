"""Fixtures of the Spark room."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spools import SpoolMaker


@pytest.fixture
def spool_maker(tmp_path: Path) -> Iterator[SpoolMaker]:
    """An empty spool and its writer."""
    maker = SpoolMaker(tmp_path / "spool")
    yield maker
    maker.close()


@pytest.fixture(autouse=True)
def _sigterm_as_it_was() -> Iterator[None]:
    """A reader that is driven in this process takes SIGTERM over, as it does in Spark's."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
