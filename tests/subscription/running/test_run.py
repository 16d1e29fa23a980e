"""The loop around subscriptions: what ends it, and what only waits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from tests.subscription.running.test_driver import QUIET, config_of, driver_of, ready
from tests.support.capturing import configure, insert, inserted, numbers, phase
from tests.support.databases import MakeDatabase
from tests.support.hostile_server import Action, Asked, HostileProxy
from tests.support.spools import OID, START, SpoolMaker, orders
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import CaptureProcess
from pgsluice.config import Config, PublicationsConfig
from pgsluice.errors import (
    ConfigError,
    ForeignSource,
    PgsluiceError,
    SinkError,
    SourceRefused,
    SourceUnreachable,
    SparkFailed,
    TargetUnreachable,
)
from pgsluice.lsn import Lsn
from pgsluice.spark.session.on_demand import ContextOnDemand
from pgsluice.spool import Pending, TableState
from pgsluice.subscription.batches.cadence import steady_now
from pgsluice.subscription.running.driver import SubscriptionDriver
from pgsluice.subscription.running.loop import RunLoop
from pgsluice.subscription.running.reloading import Reloading
from pgsluice.subscription.running.run import raise_unfinished
from pgsluice.subscription.running.session import explained, restarting
from pgsluice.subscription.running.turns import RunningSubscription


def failing(error: Exception) -> Any:
    def work() -> None:
        raise error

    return work


def running_of(
    config: Config, driver: SubscriptionDriver, ending: threading.Event
) -> RunningSubscription:
    return RunningSubscription(Reloading(config, [driver]), driver, ending)


def test_what_passes_is_waited_for(maker: SpoolMaker) -> None:
    ending = threading.Event()
    one = running_of(config_of(maker), driver_of(maker), ending)
    broken = PySparkRuntimeError("a worker was killed")
    store = TargetUnreachable("no room")
    for error in (SourceUnreachable("away"), SourceRefused("no free slot"), store, broken):
        one._retry_at = 0.0
        one._try(failing(error))
        assert one._retry_at > 0
    one._retry_at = 0.0
    one._try(lambda: None)
    assert one._retry_at == 0
    with pytest.raises(SinkError):
        one._try(failing(SinkError("no lake")))
    # What is cut off by the end of the run is no news.
    ending.set()
    with pytest.raises(PySparkRuntimeError):
        one._try(failing(broken))


def test_a_server_that_restarts_at_the_first_look_is_waited_for(
    maker: SpoolMaker, database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.subscription.running.turns._RETRY_S", 0.0)
    db = database()
    fault = Asked("SET lock_timeout", Action.CLOSE, is_walsender=False)
    with HostileProxy(db.server.port, fault) as proxy:
        config = config_of(maker)
        through = config.source.model_copy(update={"dsn": proxy.dsn(db.dsn)})
        config = config.model_copy(update={"source": through})
        one = running_of(config, driver_of(maker, config=config), threading.Event())
        one.copy_first(None)
    assert fault.has_acted
    assert not one.needs_first_snapshot


def test_deferrals_of_an_earlier_run_are_over(maker: SpoolMaker) -> None:
    """Its clock may have been ahead by an hour."""
    driver = driver_of(maker, {OID: ready("orders", pending=Pending(due=2.0**40))})
    driver.end_earlier_deferrals()
    assert driver.tables.record.tables[OID].pending.due is None


def test_a_clock_that_is_set_back_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = steady_now()
    monkeypatch.setattr("time.time", lambda: before - 3600)
    assert before <= steady_now() < before + 60


def test_once_says_which_tables_are_not_at_the_position(maker: SpoolMaker) -> None:
    target = maker.segment(orders(1))
    states: dict[str, dict[str, Any]] = {
        "done": {},
        "copied": {"state": TableState.COPIED},
        "waits": {"state": TableState.INITIALISE, "error": "public.waits: it is locked"},
        "cut_off": {"state": TableState.DATA_COPY},
        "behind": {"applied_through": Lsn(START), "error": "the disk is full"},
        "parked": {"state": TableState.PARKED, "error": "public.parked: no key"},
    }
    tables = {
        OID + 2 + number: ready(name, **{"applied_through": target, **more})
        for number, (name, more) in enumerate(states.items())
    }
    far = {OID: ready("orders", applied_through=target), QUIET: ready("q", applied_through=target)}
    driver_of(maker, far)
    raise_unfinished(config_of(maker), ["lake"], target)
    maker.segment(orders(2))  # what came later is not asked for
    raise_unfinished(config_of(maker), ["lake"], target)
    driver_of(maker, {**far, **tables})
    with pytest.raises(PgsluiceError) as raised:
        raise_unfinished(config_of(maker), ["lake"], target)
    assert str(raised.value).splitlines() == [
        "1 table is parked:",
        "  lake: public.parked: no key",
        f"  3 tables are not at {target} yet:",
        "  lake: public.waits: waits for a copy: it is locked",
        "  lake: public.cut_off: waits for a copy",
        f"  lake: public.behind: applied through {Lsn(START)}: the disk is full",
        "  → run again: it continues where it stopped",
    ]


@pytest.mark.parametrize(
    ("is_ours", "comes_further", "sessions"), [(True, False, 3), (False, False, 1), (True, True, 9)]
)
def test_sessions_that_fail_and_come_no_further_are_replaced_twice(
    is_ours: bool, comes_further: bool, sessions: int
) -> None:
    begun: list[str] = []

    @contextmanager
    def session() -> Iterator[Any]:
        begun.append("session")
        if len(begun) == 9:
            raise SinkError("no lake")
        if len(begun) % 2:
            raise SparkFailed("Spark's JVM ended while it started")
        yield None

    def work(_: object) -> None:
        raise SparkFailed("a Spark job failed")

    with pytest.raises((SparkFailed, SinkError)):
        restarting(session, work, lambda: len(begun) * comes_further, is_ours=is_ours)
    assert len(begun) == sessions


def test_what_spark_fails_asks_for_another_session(maker: SpoolMaker) -> None:
    """As where a worker could not connect back in time while rows were copied first, or where the
    JVM is gone and py4j cannot open a connection for a new thread."""
    loop = loop_of(maker, Session(), cast(Any, Working()))
    refused = ConnectionRefusedError(111, "Connection refused")
    for error in (PySparkRuntimeError("a worker was killed"), Py4JError("no answer"), refused):
        with pytest.raises(SparkFailed, match=r"a Spark job failed: .+"), explained():
            loop._side_by_side(lambda _, error=error: failing(error)())  # type: ignore[misc]
    with pytest.raises(AssertionError), explained():  # a fault of ours would be there again
        loop._side_by_side(lambda _: failing(AssertionError("a bug"))())


class Working:
    """A capture that works."""

    def check(self) -> bool:
        return True


def loop_of(
    maker: SpoolMaker,
    session: Session,
    capture: CaptureProcess,
    stop: threading.Event | None = None,
    *,
    subscriptions: int = 1,
    file: Path | None = None,
) -> RunLoop:
    """A loop of subscriptions with the same configuration, without Spark."""
    keys = {} if file is None else {"publications": ("p",)}
    config = config_of(maker, **keys)
    if file is not None:
        config = config.model_copy(update={"publications": PublicationsConfig(file=file)})
    drivers = [driver_of(maker, config=config) for _ in range(subscriptions)]
    reloading = Reloading(config, drivers, lambda: config)
    return RunLoop(reloading, started(session), capture, drivers, stop or threading.Event())


def started(session: object) -> ContextOnDemand:
    """A context that runs already."""
    on_demand = ContextOnDemand(lambda: cast(Any, session))
    on_demand()
    return on_demand


def wait_for(event: threading.Event) -> None:
    assert event.wait(HANGS_S)


class Session:
    """A Spark context that counts interrupts."""

    def __init__(self) -> None:
        self.interrupts = 0

    def cancelJobsWithTag(self, _: str) -> None:  # noqa: N802
        self.interrupts += 1


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

        loop = loop_of(maker, session, capture)
        loop._side_by_side(works)
        assert ended(session, before) == 0


def test_an_error_of_capture_ends_what_a_subscription_does(maker: SpoolMaker) -> None:
    session, before = Session(), threading.enumerate()
    with CaptureProcess(config_of(maker)) as capture:
        loop = loop_of(maker, session, capture)
        with pytest.raises(ForeignSource):  # the spool is another slot's
            loop._side_by_side(lambda subscription: wait_for(loop._ending))
    assert ended(session, before) > 0


def test_an_error_of_one_subscription_ends_the_others(maker: SpoolMaker) -> None:
    session, before = Session(), threading.enumerate()
    loop = loop_of(maker, session, cast(Any, Working()), subscriptions=3)
    last = loop._subscriptions[-1]

    def works(subscription: RunningSubscription) -> None:
        if subscription is last:
            raise SinkError("no lake")
        wait_for(loop._ending)

    with pytest.raises(SinkError):
        loop._side_by_side(works)
    assert ended(session, before) > 0


def test_a_run_that_has_ended_does_not_interrupt_the_session(maker: SpoolMaker) -> None:
    session, stop, before = Session(), threading.Event(), threading.enumerate()
    loop = loop_of(maker, session, cast(Any, Working()), stop)
    loop._side_by_side(lambda subscription: None)
    stop.set()
    assert ended(session, before) == 0
    loop._side_by_side(failing(AssertionError("it was asked to stop")))


def test_publications_are_taken_over_by_all_subscriptions_or_by_none(
    maker: SpoolMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "publications.sql"
    file.write_text("CREATE PUBLICATION p FOR TABLE t")
    loop = loop_of(maker, Session(), cast(Any, Working()), subscriptions=2, file=file)

    def taken_over() -> list[tuple[Any, bool]]:
        return [
            (running.driver._rules._chosen, running.driver.is_look_due.is_set())  # type: ignore[union-attr]
            for running in loop._subscriptions
        ]

    before = taken_over()
    file.write_text("CREATE PUBLICATION p FOR TABLE u")
    with monkeypatch.context() as patch:
        # The file is removed before the second subscription has read it.
        gone = failing(ConfigError("the file cannot be read"))
        patch.setattr(loop._subscriptions[1].driver, "reread_publications", lambda _: gone())
        loop._reloading.reload_if_asked()
    assert taken_over() == before
    loop._reloading.reload_if_asked()
    for (old, _), (new, is_look_due) in zip(before, taken_over(), strict=True):
        assert new != old
        assert is_look_due


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
        running._turn()
        before = sys.gettrace()
        sys.settrace(count)
        try:
            running._turn()
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
