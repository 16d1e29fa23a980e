"""The turns of one subscription: what only waits, and what an idle turn costs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from tests.subscription.running.test_driver import config_of, driver_of, ready
from tests.support.databases import MakeDatabase
from tests.support.hostile_server import Action, Asked, HostileProxy
from tests.support.spools import OID, SpoolMaker

from pgsluice.config import Config
from pgsluice.errors import SinkError, SourceRefused, SourceUnreachable, TargetUnreachable
from pgsluice.spool import TableState
from pgsluice.subscription.base.waits import Waits
from pgsluice.subscription.running.driver import SubscriptionDriver
from pgsluice.subscription.running.reloading import Reloading
from pgsluice.subscription.running.turns import RunningSubscription


def failing(error: Exception) -> Callable[..., None]:
    def work(*_: object) -> None:
        raise error

    return work


def running_of(
    config: Config, driver: SubscriptionDriver, ending: threading.Event
) -> RunningSubscription:
    return RunningSubscription(Reloading(config, [driver]), driver, ending)


@pytest.mark.parametrize(
    "error",
    [
        SourceUnreachable("away"),
        SourceRefused("no free slot"),
        TargetUnreachable("no room"),
        PySparkRuntimeError("a worker was killed"),
    ],
)
def test_what_passes_is_waited_for(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    driver = driver_of(maker)
    one = running_of(config_of(maker), driver, threading.Event())
    asked = []

    def tend(*_: object) -> None:
        asked.append(len(asked))
        if len(asked) == 2:
            raise error

    monkeypatch.setattr(driver.copies, "tend", tend)
    with standing_clock():
        for turns in (1, 2, 2, 2):
            one.turn()
            assert len(asked) == turns, "the source has its pause after a failure"


def test_what_does_not_pass_ends_the_run(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, ending = driver_of(maker), threading.Event()
    one = running_of(config_of(maker), driver, ending)
    monkeypatch.setattr(driver.copies, "tend", failing(SinkError("no lake")))
    with pytest.raises(SinkError):
        one.turn()
    # What is cut off by the end of the run is no news.
    broken = PySparkRuntimeError("a worker was killed")
    monkeypatch.setattr(driver.copies, "tend", failing(broken))
    ending.set()
    with pytest.raises(PySparkRuntimeError):
        one.turn()


def test_a_server_that_restarts_at_the_first_look_is_waited_for(
    maker: SpoolMaker, database: MakeDatabase
) -> None:
    db = database()
    fault = Asked("SET lock_timeout", Action.CLOSE, is_walsender=False)
    with HostileProxy(db.server.port, fault) as proxy:
        config = config_of(maker)
        through = config.source.model_copy(update={"dsn": proxy.dsn(db.dsn)})
        config = config.model_copy(update={"source": through})
        driver = driver_of(maker, config=config, waits=Waits(source_retry_s=0.0))
        one = running_of(config, driver, threading.Event())
        one.copy_first(None)
    assert fault.has_acted
    assert not one.needs_first_snapshot


def lines_of_an_idle_turn(maker: SpoolMaker, tables: int) -> int:
    """How many lines of Python a run executes in one turn without anything to do."""
    others = {OID + 10 + number: ready(f"t{number}") for number in range(tables)}
    parked = {OID + 9: ready("parked", state=TableState.PARKED, error="why")}
    running = running_of(
        config_of(maker), driver_of(maker, {**others, **parked}), threading.Event()
    )
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    with standing_clock():  # some things are done once a second
        running.turn()
        before = sys.gettrace()
        sys.settrace(count)
        try:
            running.turn()
        finally:
            sys.settrace(before)
    return lines


@contextmanager
def standing_clock() -> Iterator[None]:
    """A block that takes no time."""
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        yield


def test_an_idle_turn_costs_the_same_for_one_table_and_for_many(maker: SpoolMaker) -> None:
    assert 0 < lines_of_an_idle_turn(maker, 1) == lines_of_an_idle_turn(maker, 100)
