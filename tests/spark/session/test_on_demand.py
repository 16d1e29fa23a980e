"""A context that is started when it is first needed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from pgsluice.errors import SparkFailed
from pgsluice.spark.session.starting_context import ContextOnDemand


def test_it_starts_once_whoever_asks() -> None:
    begun: list[object] = []
    asked = Barrier(3)

    def start() -> Any:
        begun.append(object())
        return begun[-1]

    session = ContextOnDemand(start)
    assert session.running is None
    assert begun == []

    def ask(_: int) -> object:
        asked.wait()
        return session()

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(ask, range(3))) == begun * 3
    assert len(begun) == 1


def test_all_who_ask_get_the_error_of_its_start() -> None:
    """Two subscriptions ask; a second JVM must not start while the run ends for the first one."""
    begun: list[str] = []

    def start() -> Any:
        begun.append("start")
        raise SparkFailed("Spark's JVM ended while it started")

    session = ContextOnDemand(start)
    for _ in range(2):
        with pytest.raises(SparkFailed, match="ended while it started"):
            session()
    assert begun == ["start"]
    assert session.running is None
