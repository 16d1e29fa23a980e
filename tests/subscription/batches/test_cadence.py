"""When tables are merged next, by a clock that only goes on."""

from __future__ import annotations

import pytest

from pgsluice.subscription.batches.cadence import steady_now


def test_a_clock_that_is_set_back_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = steady_now()
    monkeypatch.setattr("time.time", lambda: before - 3600)
    assert before <= steady_now() < before + 60
