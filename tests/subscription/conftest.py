"""Fixtures of subscriptions: a spool that tests write, and the lake of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spools import SpoolMaker


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[SpoolMaker]:
    """An empty spool and its writer."""
    spool_maker = SpoolMaker(tmp_path / "spool")
    yield spool_maker
    spool_maker.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where the table of :mod:`tests.subscription.applying` is."""
    return tmp_path / "lake" / "orders"
