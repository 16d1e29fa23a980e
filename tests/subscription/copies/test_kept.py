"""The snapshot that copies read under, from who made it to its keeper; and its age."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.waiting import HANGS_S, await_that

from pgsluice.copy.job import CopyTables
from pgsluice.replication import connect_sql
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot, temporary_snapshot
from pgsluice.spool.layout import COPY_JOURNAL, COPY_SNAPSHOT
from pgsluice.subscription.copies.kept import HeldSnapshot, KeptCopies, ReadSnapshot, SnapshotAge
from pgsluice.subscription.copies.staging import Stage
from pgsluice.system.processes import is_running


class KeptRun:
    """A copy run whose snapshot is made and kept.

    Args:
        after_s: when its keeper starts; by default at the first look.
    """

    def __init__(self, folder: Path, dsn: str, snapshot: Snapshot, after_s: float = 0.0) -> None:
        task = CopyTables(dsn, snapshot, "spool", {}, TableOptions())
        self.files = KeptCopies(folder, 0, need_renewed_s=0.01)
        self.read = ReadSnapshot(self.files, task, [])
        self._held = HeldSnapshot(snapshot)
        self.read.keep(self._held, after_s)

    @property
    def is_let_go(self) -> bool:
        return not self._held.is_held

    def look_until_kept(self, made: Snapshot) -> None:
        """Look as a copy run does, until tasks read under the keeper's name."""
        deadline = time.monotonic() + HANGS_S
        while self.read.task.snapshot == made:
            assert time.monotonic() < deadline
            self.read.look()
            time.sleep(0.01)


def snapshot_of(stage: Stage) -> Snapshot:
    """Under which a task reads."""
    task = getattr(stage, "__self__", None)
    assert isinstance(task, CopyTables)
    return task.snapshot


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    return database()


def test_tasks_read_while_the_keeper_starts_and_who_made_the_snapshot_waits_for_them(
    shop: Database, tmp_path: Path
) -> None:
    with temporary_snapshot(shop.dsn, 60) as made:
        kept_run = KeptRun(tmp_path, shop.dsn, made)
        first = kept_run.read.reading()
        assert snapshot_of(first.__enter__()) == made
        kept_run.look_until_kept(made)
        assert (tmp_path / COPY_JOURNAL).exists()
        with kept_run.read.reading() as stage, connect_sql(shop.dsn) as connection:
            kept = snapshot_of(stage)
            assert replace(kept, name=made.name, sees="", taken_at=0.0) == made != kept
            import_snapshot(connection, kept)
            kept_run.read.look()
            assert not kept_run.is_let_go, "the first task may not have imported it yet"
            first.__exit__(None, None, None)
            kept_run.read.look()
            assert kept_run.is_let_go
    kept_run.read.end()
    found = kept_run.files.begun_before()
    assert found is not None
    assert found[0] == kept, "the next run goes on under it"
    kept_run.files.release()


def test_a_snapshot_is_said_to_be_needed_whatever_its_copy_run_waits_for(
    shop: Database, tmp_path: Path
) -> None:
    """A batch may hold the tables' lock for longer than a keeper waits."""
    with temporary_snapshot(shop.dsn, 60) as made:
        kept_run = KeptRun(tmp_path, shop.dsn, made)
        kept_run.look_until_kept(made)
    path = tmp_path / COPY_SNAPSHOT
    with kept_run.files.needed():
        for _ in range(3):
            said_at = path.stat().st_mtime_ns
            await_that(lambda said_at=said_at: path.stat().st_mtime_ns > said_at)
    kept_run.files.release()
    kept_run.read.end()


def test_a_keeper_that_has_not_answered_ends_with_its_copies(
    shop: Database, tmp_path: Path
) -> None:
    with temporary_snapshot(shop.dsn, 60) as made:
        kept_run = KeptRun(tmp_path, shop.dsn, made)
        kept_run.read.look()
        path = tmp_path / COPY_SNAPSHOT
        await_that(path.exists)
        keeper = json.loads(path.read_text())["pid"]
        kept_run.read.end()
        await_that(lambda: not is_running(keeper))
        assert not path.exists()


def test_copies_that_end_soon_have_no_keeper(shop: Database, tmp_path: Path) -> None:
    with temporary_snapshot(shop.dsn, 60) as made:
        kept_run = KeptRun(tmp_path, shop.dsn, made, after_s=1e6)
        kept_run.read.look()
        with kept_run.read.reading() as stage:
            assert snapshot_of(stage) == made
        kept_run.read.end()
        assert not kept_run.is_let_go, "the copy run itself does so"
    assert list(tmp_path.iterdir()) == []


def test_copies_go_on_without_a_keeper_that_cannot_have_the_snapshot(
    shop: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with temporary_snapshot(shop.dsn, 60) as made:
        kept_run = KeptRun(tmp_path, shop.dsn, replace(made, name="00000003-0000001B-9"))
        deadline = time.monotonic() + HANGS_S
        while not caplog.messages:
            assert time.monotonic() < deadline
            kept_run.read.look()
        (said,) = caplog.messages
        assert "cannot be kept" in said
        assert "the copies restart" in said
        assert not kept_run.is_let_go
        assert kept_run.files.begun_before() is None


def test_copies_go_on_without_a_keeper_that_cannot_be_started(
    shop: Database,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    with temporary_snapshot(shop.dsn, 60) as made:
        kept_run = KeptRun(tmp_path, shop.dsn, made)
        for _ in range(2):
            kept_run.read.look()
        (said,) = caplog.messages
        assert "could not be started" in said
        assert "the copies restart" in said
        with kept_run.read.reading() as stage:
            assert snapshot_of(stage) == made
        assert not kept_run.is_let_go


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
