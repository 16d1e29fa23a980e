"""The loop around subscriptions: what ends it, and what only waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkRuntimeError, StreamingQueryException
from tests.subscription.test_driver import config_of, driver_of
from tests.support.spools import SpoolMaker

from pgsluice.errors import PgsluiceError, SinkError, SourceRefused, SourceUnreachable
from pgsluice.subscription.loop import RunLoop, RunningSubscription


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
    one = RunningSubscription(driver_of(maker))
    stop = threading.Event()
    nothing = cast(Any, None)
    loop = RunLoop(config_of(maker), nothing, nothing, [one], stop, lambda: None)
    broken = PySparkRuntimeError("a worker was killed")
    for error in (SourceUnreachable("away"), SourceRefused("no free slot"), broken):
        one.retry_at = 0.0
        loop._try(one, failing(error))
        assert one.retry_at > 0
    one.retry_at = 0.0
    loop._try(one, lambda: None)
    assert one.retry_at == 0
    with pytest.raises(SinkError):
        loop._try(one, failing(SinkError("no lake")))
    # What is cut off by the end of the run is no news.
    stop.set()
    with pytest.raises(PySparkRuntimeError):
        loop._try(one, failing(broken))


class FailedQuery:
    """A streaming query that failed, as PySpark shows it: waiting for its end raises."""

    isActive = False  # noqa: N815

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802
        raise self.exception()

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException("[STREAM_FAILED] Query terminated with an exception")


def test_a_query_that_failed_has_ended_and_says_why(maker: SpoolMaker) -> None:
    query = driver_of(maker).query
    query._query = cast(Any, FailedQuery())
    query._error = "the target cannot be used"
    assert query.await_end(1)
    with pytest.raises(PgsluiceError, match="query of lake failed: the target cannot be used"):
        query.raise_failure()


class Session:
    """A Spark session that counts interrupts."""

    def __init__(self) -> None:
        self.interrupts = 0

    def interruptAll(self) -> None:  # noqa: N802
        self.interrupts += 1


class Unreachable:
    """A source that cannot be copied from: the run ends at once."""

    @property
    def snapshot_name(self) -> str:
        raise SourceUnreachable("away")


def test_a_run_that_has_ended_does_not_interrupt_the_session(maker: SpoolMaker) -> None:
    session, stop, before = Session(), threading.Event(), threading.enumerate()
    nothing = cast(Any, None)
    loop = RunLoop(config_of(maker), cast(Any, session), nothing, [], stop, lambda: None)
    with pytest.raises(SourceUnreachable):
        loop.run(cast(Any, Unreachable()), None)
    assert [thread for thread in threading.enumerate() if thread not in before] == []
    stop.set()
    assert session.interrupts == 0
