"""What is a problem, and which ones make ``/readyz`` say no: in each state of a subscription."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.catalog.server import SlotInfo
from pgsluice.config import Config, MonitorConfig, parse_config
from pgsluice.lsn import Lsn
from pgsluice.monitor.problems import find_problems
from pgsluice.monitor.source_status import CaptureStatus, SourceStatus
from pgsluice.monitor.spool_status import SpoolStatus
from pgsluice.monitor.status import Status, SubscriptionStatus
from pgsluice.spool import TableRecord, TableState

_AT = Lsn(16)
CONFIG = parse_config(
    """
[source]
dsn = "dbname=shop"
slot = "shop"
[spool]
path = "spool"
[[subscription]]
name = "lake"
sink = { type = "delta", path = "lake/{schema}/{table}" }
[monitor]
max_lag_s = 300
max_slot_bytes = "1 GiB"
""",
    Path("/etc/shop.toml"),
)
SLOT = SlotInfo(
    "shop", "pgoutput", "shop", False, True, 7, _AT, 100, "reserved", None, False, False, False
)
READY = TableRecord("public", "a", TableState.READY, _AT)
LAKE = SubscriptionStatus(
    "lake", "current", "lake", _AT, 0, 0.0, (READY,), is_enabled=True, is_configured=True,
    is_running=True,
)  # fmt: skip
WELL = Status(
    SourceStatus("shop", SLOT, _AT, read_at=1.0),
    SpoolStatus(_AT, _AT),
    (LAKE,),
    CaptureStatus(True, "streaming", _AT, reported_at=1.0, pid=7, is_streaming=True),
    1.0,
)


def with_slot(**changes: object) -> Status:
    return replace(WELL, source=replace(WELL.source, slot=replace(SLOT, **changes)))


def with_capture(**changes: object) -> Status:
    return replace(WELL, capture=replace(WELL.capture, is_streaming=False, **changes))


def with_lake(**changes: object) -> Status:
    return replace(WELL, subscriptions=(replace(LAKE, **changes),))


def with_table(state: TableState, error: str | None = None) -> Status:
    return with_lake(tables=(READY, TableRecord("public", "b", state, _AT, error=error)))


def test_nothing_is_wrong_with_a_run_that_works() -> None:
    assert find_problems(WELL, CONFIG) == []


@pytest.mark.parametrize(
    ("status", "what", "is_ready"),
    [
        (with_lake(is_running=False), "lake: no run is active", False),
        (with_lake(position=None, lag_s=None), "lake: not started yet", False),
        (
            with_capture(phase="reconnecting", message="fe_sendauth: no password supplied"),
            "capture is reconnecting: fe_sendauth: no password supplied",
            False,
        ),
        (
            with_capture(phase="waiting for room in the spool", message="the spool is full"),
            "capture is waiting for room in the spool: the spool is full",
            False,
        ),
        (with_capture(is_running=False, phase=None), "capture does not run", False),
        (
            with_capture(phase="streaming", message="process 7 has reported nothing since then"),
            "capture is silent: process 7 has reported nothing since then",
            False,
        ),
        (with_lake(lag_s=301.0), "lake: 5 min 1 s behind, more than 5 min 0 s", False),
        (
            with_table(TableState.PARKED, "a value does not fit"),
            "lake: 1 table parked (public.b)",
            True,
        ),
        (
            with_table(TableState.READY, "the store does not answer"),
            "lake: 1 table failing (public.b)",
            True,
        ),
        (
            with_slot(wal_status="lost"),
            "slot shop has lost WAL that it needs: its wal_status is lost",
            False,
        ),
        (
            with_slot(wal_status="unreserved"),
            "slot shop may lose WAL that it needs: its wal_status is unreserved",
            False,
        ),
        (
            with_slot(retained_bytes=2 * 2**30),
            "slot shop keeps 2.0 GiB of WAL, more than 1.0 GiB",
            True,
        ),
        (replace(WELL, source=replace(WELL.source, slot=None)), "slot shop does not exist", False),
        (
            replace(WELL, source=SourceStatus("shop", error="connection refused")),
            "source: connection refused",
            True,
        ),
        (replace(WELL, spool=SpoolStatus(error="damaged")), "spool: damaged", False),
    ],
)
def test_each_problem_is_named(status: Status, what: str, is_ready: bool) -> None:
    (problem,) = find_problems(status, CONFIG)
    assert (problem.what, not problem.prevents_ready) == (what, is_ready)


@pytest.mark.parametrize("state", [TableState.INITIALISE, TableState.DATA_COPY, TableState.COPIED])
def test_a_copy_that_runs_is_no_problem(state: TableState) -> None:
    assert find_problems(with_table(state), CONFIG) == []


def test_disabled_and_unknown_subscriptions_are_none() -> None:
    assert find_problems(with_lake(is_running=False, is_enabled=False), CONFIG) == []
    assert find_problems(with_lake(is_running=None, is_configured=False), CONFIG) == []


def test_a_slot_that_was_not_read_is_not_missing() -> None:
    assert find_problems(replace(WELL, source=SourceStatus("shop")), CONFIG) == []


def test_the_thresholds_are_those_of_the_configuration() -> None:
    def with_limits(**limits: float) -> Config:
        return CONFIG.model_copy(update={"monitor": MonitorConfig(**limits)})

    behind = with_lake(lag_s=301.0)
    assert find_problems(behind, with_limits(max_lag_s=400.0)) == []
    assert find_problems(behind, with_limits(max_lag_s=10.0)) != []


def test_many_tables_are_counted() -> None:
    parked = tuple(TableRecord("s", f"t{n}", TableState.PARKED, _AT, error="x") for n in range(5))
    (problem,) = find_problems(with_lake(tables=parked), CONFIG)
    assert problem.what == "lake: 5 tables parked (s.t0, s.t1, s.t2 and 2 more)"
