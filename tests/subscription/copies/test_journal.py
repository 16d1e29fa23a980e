"""What a later run reads of the journal of copies: what is staged, and nothing of another copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.subscription.copies.test_staging import table

from pgsluice.copy.job import CopyTables
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, StagedRows
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.subscription.copies.kept import CopyJournal
from pgsluice.subscription.copies.portion_queue import TableCopy

SNAPSHOT = Snapshot("00000003-1", Lsn(100))
TASK = CopyTables("dbname=shop", SNAPSHOT, "spool", {"type": "delta"}, TableOptions())
PART = StagedRows(rows=7, bytes_written=70, payload=b"\0\xff")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of a table with three chunks, of which the second one is staged."""
    copy = table("t", 10, 20, 30)
    journal = CopyJournal(tmp_path / "journal", SNAPSHOT)
    journal.begin()
    journal.plan(TASK, copy)
    copy.staged[1] = PART
    journal.staged(copy, 1)
    return tmp_path / "journal"


def restored(
    path: Path, snapshot: Snapshot = SNAPSHOT, task: CopyTables = TASK
) -> TableCopy | None:
    journal = CopyJournal(path, snapshot)
    journal.read()
    return journal.restore(task, table("t").work)


def test_a_later_run_has_the_chunks_and_what_is_staged(path: Path) -> None:
    copy = restored(path)
    assert copy is not None
    assert copy.portions == table("t", 10, 20, 30).portions
    assert copy.staged == {1: PART}


def test_a_line_that_was_cut_off_is_a_chunk_that_is_read_again(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    copy = restored(path)
    assert copy is not None
    assert copy.staged == {}


def test_a_line_after_one_that_was_cut_off_counts(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    copy = table("t", 10, 20, 30)
    copy.staged[2] = PART
    CopyJournal(path, SNAPSHOT).staged(copy, 2)
    assert (found := restored(path)) is not None
    assert found.staged == {2: PART}


def test_the_journal_of_another_snapshot_or_copy_is_ignored(path: Path) -> None:
    for snapshot in (replace(SNAPSHOT, name="00000003-2"), replace(SNAPSHOT, position=Lsn(101))):
        assert restored(path, snapshot) is None
    assert restored(path, task=replace(TASK, sink={"type": "delta", "path": "elsewhere"})) is None
    assert restored(path.with_name("none")) is None
    CopyJournal(path, SNAPSHOT).begin()
    assert restored(path) is None, "a new one is empty"


def test_what_a_sink_has_already_loaded_is_not_journaled(path: Path) -> None:
    copy = table("t", 10, 20, 30)
    copy.staged[0] = replace(PART, loaded=Applied(version=1))
    CopyJournal(path, SNAPSHOT).staged(copy, 0)
    assert (found := restored(path)) is not None
    assert found.staged == {1: PART}
