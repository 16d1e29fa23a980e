"""When the newest commits of tables are checked once more."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pgsluice.lsn import Lsn
from pgsluice.spool import Owner, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.batches.batches import Confirmations


def table(**more: Any) -> TableRecord:
    return TableRecord("public", "t", **{"state": TableState.READY, "committed": Lsn(9), **more})


RECORD = SubscriptionRecord(
    "lake",
    Owner.CONFIG,
    "current",
    "delta",
    Lsn(1),
    Lsn(9),
    {
        1: table(),
        2: table(),
        3: table(state=TableState.PARKED, error="why"),
        4: table(committed=Lsn(0)),
    },
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_a_new_run_checks_every_table_once(clock: Clock) -> None:
    confirmations = Confirmations(60.0)
    assert confirmations.due(RECORD) == []
    clock.now += 60
    assert confirmations.due(RECORD) == [1, 2], "those that replicate and have a commit"
    clock.now += 600
    assert confirmations.due(RECORD) == []


def test_a_later_commit_is_checked_later(clock: Clock) -> None:
    confirmations = Confirmations(60.0)
    confirmations.due(RECORD)
    clock.now += 30
    confirmations.committed([2])
    clock.now += 30
    assert confirmations.due(RECORD) == [1]
    clock.now += 30
    assert confirmations.due(RECORD) == [2]


def test_where_commits_cannot_be_overwritten_nothing_is_checked(clock: Clock) -> None:
    confirmations = Confirmations(0.0)
    confirmations.committed([1])
    clock.now += 1e9
    assert confirmations.due(RECORD) == []
