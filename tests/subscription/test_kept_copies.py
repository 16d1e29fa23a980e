"""The age of the snapshot that a run goes on with."""

from __future__ import annotations

import time

import pytest

from pgsluice.subscription.kept_copies import SnapshotAge


def test_the_age_of_a_snapshot_counts_from_when_it_was_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run that goes on with the snapshot of an earlier one warns at once, and then each hour."""
    SnapshotAge("lake", time.time() - 600).look()
    SnapshotAge("lake", 0.0).look()  # of an earlier version
    assert caplog.messages == []
    age = SnapshotAge("lake", time.time() - 3 * 3600 - 60)
    age.look()
    age.look()
    (said,) = caplog.messages
    assert "snapshot of the copies of lake has been held for more than 3 hours" in said
