"""What a copy run says while it waits for its snapshot."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from tests.support.databases import MakeDatabase
from tests.support.waiting import HANGS_S

from pgsluice.errors import PgsluiceError, SourceRefused
from pgsluice.events import CopiesProgress, MetricsEvent
from pgsluice.spool.layout import COPY_STATUS
from pgsluice.subscription.copies.progress import CopyCounts
from pgsluice.subscription.copies.snapshots import new_snapshot

TABLE = 1


def test_what_a_snapshot_waits_for_is_said_until_it_is_there(
    database: MakeDatabase, tmp_path: Path
) -> None:
    """The file is written again and again: status takes an old one for that of a run that ended."""
    shop = database()
    events: list[MetricsEvent] = []
    counts = CopyCounts("lake", tmp_path, events.append)
    seen: set[float] = set()

    def is_stopping() -> bool:
        seen.add(json.loads((tmp_path / COPY_STATUS).read_text())["written_at"])
        return len(seen) > 2 or time.monotonic() > deadline

    deadline = time.monotonic() + HANGS_S
    shop.execute("CREATE TABLE t (a int)")
    with shop.connect() as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES (1)")
        with (
            pytest.raises(PgsluiceError, match="asked to stop"),
            new_snapshot(shop.dsn, counts, [TABLE], is_stopping),
        ):
            pass
        writer.execute("ROLLBACK")
    assert len(seen) == 3
    assert _waits_for(events) == "a snapshot, which follows the transactions open now"


def test_what_a_snapshot_waits_for_is_named(database: MakeDatabase, tmp_path: Path) -> None:
    """A prepared transaction has no session: without its name nobody finds it."""
    shop = database()
    events: list[MetricsEvent] = []
    counts = CopyCounts("lake", tmp_path, events.append)
    named = f"prepared transaction '{shop.name}' in {shop.name}"
    deadline = time.monotonic() + HANGS_S

    def is_stopping() -> bool:
        return named in _waits_for(events) or time.monotonic() > deadline

    shop.execute("CREATE TABLE t (a int)")
    shop.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{shop.name}'")
    with (
        pytest.raises(PgsluiceError, match="asked to stop"),
        new_snapshot(shop.dsn, counts, [TABLE], is_stopping),
    ):
        pass
    assert _waits_for(events).startswith("a snapshot, which follows the end of: ")
    assert named in _waits_for(events)


def test_why_there_is_no_snapshot_is_said(database: MakeDatabase, tmp_path: Path) -> None:
    shop = database()
    events: list[MetricsEvent] = []
    counts = CopyCounts("lake", tmp_path, events.append)
    role = f"{shop.name}_plain"
    shop.execute(f"CREATE ROLE {role} LOGIN")
    try:
        dsn = make_conninfo(shop.dsn, user=role)
        with pytest.raises(SourceRefused) as refused, new_snapshot(dsn, counts, [TABLE], bool):
            pass
    finally:
        shop.execute(f"DROP ROLE {role}")
    assert _waits_for(events) == f"a snapshot; the last try failed: {refused.value.what}"
    assert len(events) == 1, "a try that fails at once does not say that it follows transactions"


def _waits_for(events: list[MetricsEvent]) -> str:
    progress = [event for event in events if isinstance(event, CopiesProgress)][-1]
    (waits_for,) = progress.waits_for
    return waits_for
