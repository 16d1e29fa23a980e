"""A batch that fails is run again, unless another attempt would be useless."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from py4j.protocol import Py4JNetworkError
from tests.subscription.running.test_driver import driver_of
from tests.support.spools import SpoolMaker
from tests.support.waiting import HANGS_S

from pgsluice.errors import SinkError, SourceUnreachable
from pgsluice.events import BatchFailed
from pgsluice.subscription.running.turns import BatchThread


def run(thread: BatchThread) -> None:
    """Run it to its end, and raise its error."""
    thread.start()
    thread.join(HANGS_S)
    assert not thread.is_alive()
    thread.raise_error()


def failing(error: BaseException) -> Callable[[float], bool]:
    def run_next(_: float) -> bool:
        raise error

    return run_next


def test_a_batch_that_fails_is_run_again_and_said_once_while_it_fails(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reported, ending = list[object](), threading.Event()
    driver = driver_of(maker, report=reported.append)
    attempts = iter(["away", "away", "", "away", "full", ""])

    def run_next(_: float) -> bool:
        why = next(attempts, None)
        if why is None:
            ending.set()
        elif why:
            raise SourceUnreachable(why)
        return True

    monkeypatch.setattr(driver.batches, "run_next", run_next)
    run(BatchThread(driver, ending, (0.0,)))
    failed = [event.why for event in reported if isinstance(event, BatchFailed)]
    assert failed == ["away", "away", "away", "full"]
    said = [message.rpartition(": ")[2] for message in caplog.messages]
    assert said == ["away", "away", "full"], "again after a batch that worked"


@pytest.mark.parametrize("error", [Py4JNetworkError("no answer"), ConnectionError(), SystemExit()])
def test_without_a_jvm_nothing_is_tried_again(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    driver = driver_of(maker)
    monkeypatch.setattr(driver.batches, "run_next", failing(error))
    with pytest.raises(type(error)):
        run(BatchThread(driver, threading.Event(), (0.0,)))


def test_a_target_that_cannot_be_used_ends_the_thread(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever error it led to."""
    driver = driver_of(maker)
    monkeypatch.setattr(driver.batches, "run_next", failing(SourceUnreachable("away")))
    monkeypatch.setattr(driver, "raise_failure", lambda: failing(SinkError("no lake"))(0))
    with pytest.raises(SinkError):
        run(BatchThread(driver, threading.Event(), (0.0,)))


def test_what_the_end_of_a_run_cuts_off_is_no_failure(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, ending = list[object](), threading.Event()
    driver = driver_of(maker, report=reported.append)

    def run_next(_: float) -> bool:
        ending.set()
        raise ConnectionError

    monkeypatch.setattr(driver.batches, "run_next", run_next)
    run(BatchThread(driver, ending))
    assert not reported
