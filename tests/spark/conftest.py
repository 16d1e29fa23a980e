"""Fixtures for the tests of the Spark source."""

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
def _restored_sigterm_handler() -> Iterator[None]:
    """Restore SIGTERM's handler: a planning reader replaces it in this process, too."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
