"""The loop around subscriptions: what ends it, and what only waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkRuntimeError
from tests.subscription.test_driver import driver_of
from tests.support.spools import SpoolMaker

from pgsluice.errors import SinkError, SourceRefused, SourceUnreachable
from pgsluice.subscription.copying import TableCopies
from pgsluice.subscription.run import _Run, _Running


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[SpoolMaker]:
    one = SpoolMaker(tmp_path / "spool")
    yield one
    one.close()


def failing(error: Exception) -> Any:
    def work() -> None:
        raise error

    return work


def test_what_passes_is_waited_for(maker: SpoolMaker) -> None:
    driver = driver_of(maker)
    one = _Running(driver, TableCopies(driver, driver.config))
    stop = threading.Event()
    loop = _Run(driver.config, cast(Any, None), cast(Any, None), [one], stop, lambda: None)
    broken = PySparkRuntimeError("a worker was killed")
    for error in (SourceUnreachable("away"), SourceRefused("no free slot"), broken):
        one.ask_at = 0.0
        loop._try(one, failing(error))
        assert one.ask_at > 0
    one.ask_at = 0.0
    loop._try(one, lambda: None)
    assert one.ask_at == 0
    with pytest.raises(SinkError):
        loop._try(one, failing(SinkError("no lake")))
    # What is cut off by the end of the run is no news.
    stop.set()
    with pytest.raises(PySparkRuntimeError):
        loop._try(one, failing(broken))
