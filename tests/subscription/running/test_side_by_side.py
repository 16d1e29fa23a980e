"""The threads of subscriptions: what ends them, and what is watched meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from tests.subscription.running.test_driver import config_of, driver_of
from tests.support.capturing import configure, insert, inserted, numbers, phase
from tests.support.databases import MakeDatabase
from tests.support.spools import SpoolMaker
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import CaptureProcess
from pgsluice.errors import ForeignSource, SinkError
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.subscription.running.loop import SideBySide
from pgsluice.subscription.running.reloading import Reloading
from pgsluice.subscription.running.turns import RunningSubscription


class Working:
    """A capture that works."""

    def check(self) -> bool:
        return True


class Session:
    """A Spark context that counts interrupts."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.is_interrupted = threading.Event()

    def cancelJobsWithTag(self, _: str) -> None:  # noqa: N802
        self.interrupts += 1
        self.is_interrupted.set()


class Beside:
    """Subscriptions with the same configuration, side by side and without Spark.

    Attributes:
        ending: set when the run ends.
    """

    def __init__(
        self,
        maker: SpoolMaker,
        session: Session,
        capture: CaptureProcess,
        subscriptions: int = 1,
        stop: threading.Event | None = None,
    ) -> None:
        config = config_of(maker)
        drivers = [driver_of(maker) for _ in range(subscriptions)]
        reloading, self.ending = Reloading(config, drivers), threading.Event()
        self.subscriptions = [
            RunningSubscription(reloading, driver, self.ending) for driver in drivers
        ]
        self._beside = SideBySide(
            started(session), capture, self.subscriptions, stop or threading.Event(), self.ending
        )
        self.run = self._beside.run


def started(session: object) -> ContextOnDemand:
    """A context that runs already."""
    on_demand = ContextOnDemand(lambda: cast(Any, session))
    on_demand()
    return on_demand


def wait_for(event: threading.Event) -> None:
    assert event.wait(HANGS_S)


def ended(session: Session, before: list[threading.Thread]) -> int:
    """No thread of the run is left; how often the session was interrupted."""
    mine = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in mine if thread.name.startswith("pgsluice")] == []
    return session.interrupts


def test_capture_is_looked_after_while_a_subscription_works(
    database: MakeDatabase, tmp_path: Path
) -> None:
    """A copy may take hours; nobody else would start capture again."""
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    config = configure(db, tmp_path / "spool")
    session, before = Session(), threading.enumerate()
    maker = SpoolMaker(tmp_path / "other")
    maker.close()
    with CaptureProcess(config) as capture:

        def works(subscription: RunningSubscription) -> None:
            await_that(lambda: phase(config) == "streaming")
            first = capture.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await_that(lambda: capture.pid not in (None, first))
            db.execute(insert(1, 2))
            await_that(lambda: inserted(config) == numbers(1, 2))

        Beside(maker, session, capture).run(works)
        assert ended(session, before) == 0


def test_an_error_of_capture_ends_what_a_subscription_does(maker: SpoolMaker) -> None:
    session, before = Session(), threading.enumerate()
    with CaptureProcess(config_of(maker)) as capture:
        beside = Beside(maker, session, capture)
        with pytest.raises(ForeignSource):  # the spool is another slot's
            # Work that only an interrupt ends, as a job of Spark.
            beside.run(lambda subscription: wait_for(session.is_interrupted))
    assert ended(session, before) > 0


def test_an_error_of_one_subscription_ends_the_others(maker: SpoolMaker) -> None:
    session, before = Session(), threading.enumerate()
    beside = Beside(maker, session, cast(Any, Working()), subscriptions=3)
    last = beside.subscriptions[-1]

    def works(subscription: RunningSubscription) -> None:
        if subscription is last:
            raise SinkError("no lake")
        wait_for(session.is_interrupted)

    with pytest.raises(SinkError):
        beside.run(works)
    assert ended(session, before) > 0


def test_a_run_that_has_ended_does_not_interrupt_the_session(maker: SpoolMaker) -> None:
    session, stop, before = Session(), threading.Event(), threading.enumerate()
    beside = Beside(maker, session, cast(Any, Working()), stop=stop)
    beside.run(lambda subscription: None)
    stop.set()
    assert ended(session, before) == 0
    beside.run(lambda _: pytest.fail("it was asked to stop"))
