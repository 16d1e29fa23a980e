"""A query that waits for a capture that it may not start itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark import keeper
from pgsluice.spark.keeper import CaptureKeeper
from pgsluice.spark.options import SourceOptions
from pgsluice.spool import Owner, RecordStore, Spool, SpoolIdentity, SubscriptionRecord


def test_a_spool_that_no_capture_begins_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pgsluice run` was killed before it had made its slot, and is not started again."""
    path = tmp_path / "spool"
    identity = SpoolIdentity.new(
        system_identifier="7", timeline=1, database="shop", slot="pgsluice"
    )
    Spool.create(path, identity)
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, mode="current", sink="delta", registered=Lsn(0), position=Lsn(0)
    )
    RecordStore.create(path, record)
    monkeypatch.setattr(keeper, "_NO_CAPTURE_TIMEOUT_S", 0.2)
    waiting = CaptureKeeper(SourceOptions(spool=path, dsn="dbname=shop"))
    with pytest.raises(SpoolError, match="no capture writes to the spool"):
        waiting.wait_for_spool()
