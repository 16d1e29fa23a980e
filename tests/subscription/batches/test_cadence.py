"""When tables are merged next, by a clock that only goes on, and which checkpoints are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgsluice.lsn import Lsn
from pgsluice.spool import Cut, Owner, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.batches.results import kept_versions, merge_pause_s, next_cut, steady_now

REACHED = Lsn(200)


def table(version: int = 5, **more: Any) -> TableRecord:
    reached = {"applied_through": REACHED, "committed": REACHED, "version": version}
    return TableRecord("public", "t", **{"state": TableState.READY, **reached, **more})


def record(*tables: TableRecord, cuts: tuple[Cut, ...] = ()) -> SubscriptionRecord:
    known = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", Lsn(1), REACHED, dict(enumerate(tables, 1))
    )
    return replace(known, cuts=cuts)


def test_a_clock_that_is_set_back_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = steady_now()
    monkeypatch.setattr("time.time", lambda: before - 3600)
    assert before <= steady_now() < before + 60


@pytest.mark.parametrize(
    ("merge_s", "interval_s", "pause_s"), [(0.4, 0, 0), (0.4, 9, 9), (2, 0, 8), (2, 9, 9)]
)
def test_only_expensive_merges_have_a_pause(
    merge_s: float, interval_s: float, pause_s: float
) -> None:
    assert merge_pause_s(merge_s, interval_s) == pause_s


@pytest.mark.parametrize(
    ("other", "is_cut"),
    [
        (table(7), True),
        (table(7, committed=Lsn(150)), True),  # later batches had no changes for it
        (table(7, applied_through=Lsn(150)), False),
        (table(7, committed=Lsn(250)), False),  # copied at a point that the others have not reached
        (table(7, state=TableState.PARKED, error="why"), True),
    ],
)
def test_a_checkpoint_is_made_where_all_replicating_tables_are(
    other: TableRecord, is_cut: bool
) -> None:
    found = next_cut(record(table(), other), REACHED, 1000.0, 3600.0, 60.0)
    assert (found is not None) is is_cut
    if found is not None:
        versions = {1: 5, 2: 7} if other.is_active else {1: 5}
        assert found[0] == Cut(REACHED, 1000.0, versions)


@pytest.mark.parametrize(
    ("made_at", "kept"),
    [
        ((), (1000.0,)),
        ((970.0,), (970.0,)),
        ((900.0, 940.0), (900.0, 940.0, 1000.0)),
        ((100.0, 950.0), (950.0,)),  # the first one is too old
        ((2000.0,), (2000.0, 1000.0)),  # made by a clock that was ahead
    ],
)
def test_older_checkpoints_are_kept_apart_and_for_a_while(
    made_at: tuple[float, ...], kept: tuple[float, ...]
) -> None:
    cuts = tuple(Cut(Lsn(100), at, {1: 3}) for at in made_at)
    found = next_cut(record(table(), cuts=cuts), REACHED, 1000.0, 600.0, 60.0)
    assert found is not None
    assert tuple(cut.made_at for cut in found[1]) == kept


def test_versions_of_checkpoints_and_of_a_barrier_are_kept() -> None:
    known = record(table(), cuts=(Cut(Lsn(100), 0.0, {1: 3, 2: 1}), Cut(Lsn(150), 60.0, {1: 4})))
    assert kept_versions(known, {1: 9}, [1, 3]) == {1: (3, 4, 9), 3: ()}
