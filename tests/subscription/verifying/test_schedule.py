"""Which tables a scheduled verification takes, and in which order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pgsluice.config.model import VerifyConfig
from pgsluice.lsn import Lsn
from pgsluice.spool import Copied, Owner, SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.notes import Verified, keep_verified
from pgsluice.subscription.verifying.suspicious_tables import VerificationSchedule

HOURLY = VerifyConfig.model_validate({"every": "1h"})
COPIED = Lsn(100)


def table(**more: Any) -> TableRecord:
    return TableRecord(
        "public", "t", **{"state": TableState.READY, "copied": Copied(COPIED), **more}
    )


def record(**tables: TableRecord) -> SubscriptionRecord:
    by_oid = {int(name[1:]): each for name, each in tables.items()}
    return SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", COPIED, COPIED, by_oid)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    subscription_folder(tmp_path, "lake").mkdir(parents=True)
    return tmp_path


def due(spool: Path, known: SubscriptionRecord) -> list[int]:
    return VerificationSchedule(spool, "lake").due(HOURLY, known)


def test_the_oldest_verification_comes_first(spool: Path) -> None:
    now = time.time()
    verified = {1: now - 4000, 2: now - 8000, 3: now - 60}
    keep_verified(spool, "lake", {oid: Verified(COPIED, at) for oid, at in verified.items()})
    assert due(spool, record(t1=table(), t2=table(), t3=table(), t4=table())) == [4, 2, 1]


def test_a_copy_outdates_a_verification(spool: Path) -> None:
    keep_verified(spool, "lake", {1: Verified(Lsn(50), time.time())})
    assert due(spool, record(t1=table())) == [1]


def test_a_clock_that_was_set_back_does_not_stop_the_schedule(spool: Path) -> None:
    keep_verified(spool, "lake", {1: Verified(COPIED, time.time() + 9000)})
    assert due(spool, record(t1=table())) == [1]


def test_targets_that_are_not_meant_to_equal_their_source_are_left_out(spool: Path) -> None:
    known = record(
        t1=table(copied=Copied()),  # with copy_data = false
        t2=table(is_published=False),
        t3=table(state=TableState.PARKED, error="why"),
        t4=table(incomplete=("inserts",)),
    )
    assert due(spool, known) == []


def test_it_looks_now_and_then_and_a_table_that_differed_waits_for_its_interval(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, known, now = VerificationSchedule(spool, "lake"), record(t1=table()), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert schedule.due(None, known) == []
    assert schedule.due(HOURLY, known) == [1]
    assert schedule.due(HOURLY, known) == [], "it has just looked"
    schedule.put_off(1, HOURLY)
    now += 60
    assert schedule.due(HOURLY, known) == []
    now += 3600
    assert schedule.due(HOURLY, known) == [1]
    schedule.equal(1, COPIED)
    now += 60
    assert schedule.due(HOURLY, known) == []
