"""Attempts that fail leave no files: those at a full disk are repeated until there is room."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.sinks.cached_files import fill_disk

from pgsluice import failpoints
from pgsluice.errors import PgsluiceError, TargetUnreachable
from pgsluice.lsn import Lsn
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.log import durability
from pgsluice.sinks.delta.log.commit import commit
from pgsluice.sinks.delta.log.reading import commit_name, newest_snapshot
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.stores.local import LocalFolder
from pgsluice.testing.sink_contract import TABLE, batches, changes, identity, net, row

PLACES: list[tuple[Merge, str, int]] = [
    ("on_read", "delta.written", 1),
    ("on_read", "delta.written", 2),
    ("on_read", "store.sync", 2),
    ("on_read", "delta.before_commit", 1),
    ("on_write", "delta.written", 1),
    ("on_write", "store.sync", 2),
    ("on_write", "delta.before_commit", 1),
]


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaSink]:
    yield DeltaSink(f"{tmp_path}/lake/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys")
    failpoints.arm("")


def writer_of(sink: DeltaSink, copy: int = 1) -> TableWriter:
    return TableWriter(sink, TABLE, identity(copy=copy))


def files_of(sink: DeltaSink) -> set[Path]:
    """Those of the table, its log and its vectors."""
    folder = Path(sink.location("public", "t"))
    return {path for path in folder.rglob("*") if path.is_file()}


def load(sink: DeltaSink) -> None:
    writer_of(sink).load(batches(*map(row, range(50))), Lsn(100))


def update(sink: DeltaSink, id_: int, position: int) -> TableWriter:
    writer, t = writer_of(sink), changes()
    t.update(row(id_, 7))
    t.insert(row(1000 + position))
    writer.apply(net(t), Lsn(position))
    return writer


@pytest.mark.parametrize(("way", "place", "times"), PLACES)
def test_failed_changes_leave_no_files(sink: DeltaSink, way: Merge, place: str, times: int) -> None:
    sink = replace(sink, merge=way)
    load(sink)
    before = files_of(sink)
    for _ in range(3):
        failpoints.arm(f"{place}=enospc@{times}")
        with pytest.raises(PgsluiceError, match="no room"):
            update(sink, 1, 110)
    assert files_of(sink) == before
    failpoints.arm("")
    update(sink, 1, 110)
    assert rows_of(sink)[1] == row(1, 7)


def test_changes_whose_commit_may_have_been_made_keep_their_files(sink: DeltaSink) -> None:
    load(sink)
    failpoints.arm("delta.after_commit=eio")
    with pytest.raises(PgsluiceError):
        update(sink, 1, 110)
    failpoints.arm("")
    assert writer_of(sink).position() == 110
    assert rows_of(sink)[1] == row(1, 7)


def test_changes_that_another_commit_overtakes_leave_no_files(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can make the version that would have named them."""
    load(sink)
    create = LocalFolder.create
    inside = list[set[Path]]()

    def overtaken(folder: LocalFolder, name: str, content: bytes) -> Hashable:
        monkeypatch.setattr(LocalFolder, "create", create)
        assert name == commit_name(1)
        inside.append(files_of(sink))
        snapshot = newest_snapshot(folder)
        assert snapshot is not None
        commit(snapshot, "OPTIMIZE", [])
        return folder.create(name, content)

    monkeypatch.setattr(LocalFolder, "create", overtaken)
    before = files_of(sink)
    update(sink, 1, 110)
    (written,) = inside
    assert written > before, "files of the changes were there"
    assert not (written - before) & files_of(sink)
    assert rows_of(sink)[1] == row(1, 7)


def test_a_link_that_was_made_twice_is_a_commit(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a call whose answer was lost: the second one finds the first one's name."""
    load(sink)
    link = Path.hardlink_to

    def twice(path: Path, target: Path) -> None:
        link(path, target)
        link(path, target)

    monkeypatch.setattr(Path, "hardlink_to", twice)
    assert update(sink, 1, 110).version() == 1
    assert rows_of(sink)[1] == row(1, 7)


def test_a_failed_copy_leaves_no_files(sink: DeltaSink) -> None:
    load(sink)
    before = files_of(sink)
    failpoints.arm("delta.written=enospc")
    with pytest.raises(PgsluiceError, match="no room"):
        writer_of(sink, copy=2).stage_load(batches(*map(row, range(9))), Lsn(200))
    assert files_of(sink) == before


def test_discarded_rows_leave_no_files(sink: DeltaSink) -> None:
    load(sink)
    before = files_of(sink)
    writer = writer_of(sink, copy=2)
    staged = [writer.stage_load(batches(row(number)), Lsn(200)) for number in range(3)]
    assert len(files_of(sink)) == len(before) + 3
    writer.discard_load(staged)
    assert files_of(sink) == before
    writer.discard_load(staged)


def test_rows_that_end_in_an_error_leave_no_files(sink: DeltaSink) -> None:
    load(sink)
    before = files_of(sink)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(*map(row, range(9)))
        raise PgsluiceError("the session broke")

    with pytest.raises(PgsluiceError, match="broke"):
        writer_of(sink, copy=2).stage_load(broken(), Lsn(200))
    assert files_of(sink) == before


def test_failed_upkeep_leaves_no_files(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.sinks.lake.upkeep.FILES_OF_A_SIZE", 2)
    load(sink)
    writer = update(sink, 1, 110)
    before = files_of(sink)
    failpoints.arm("delta.written=enospc")
    with pytest.raises(PgsluiceError, match="no room"):
        writer.maintain([])
    assert files_of(sink) == before


def test_a_key_file_that_cannot_be_written_leaves_nothing(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is another one than the table's, perhaps."""
    load(sink)
    keys, before = set((tmp_path / "keys").rglob("*.*")), files_of(sink)

    fill_disk(monkeypatch)
    for _ in range(2):
        with pytest.raises(PgsluiceError, match="no room"):
            update(sink, 1, 110)
    assert set((tmp_path / "keys").rglob("*.*")) == keys
    assert files_of(sink) == before


def test_key_files_of_killed_processes_are_deleted_after_a_day(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.MANY_COMMITS", 1)
    load(sink)
    update(sink, 1, 110)
    (folder,) = (tmp_path / "keys").iterdir()
    old, young = folder / "old.tmp", folder / "young.tmp"
    old.touch()
    young.touch()
    day_ago = time.time() - 25 * 3600
    os.utime(old, (day_ago, day_ago))
    update(sink, 2, 120).maintain([])
    assert not old.exists()
    assert young.exists()


def rows_of(sink: DeltaSink) -> dict[int, dict[str, object]]:
    table = pa.RecordBatchReader.from_stream(
        DeltaTable(sink.location("public", "t")).scan()
    ).read_all()
    return {one["id"]: one for one in table.to_pylist()}


def test_a_disk_that_fails_when_the_position_is_asked_for_is_named(sink: DeltaSink) -> None:
    """A new process writes out what an earlier one has committed, before its position counts."""
    load(sink)
    durability.SETTLED.clear()
    failpoints.arm("store.sync=eio")
    with pytest.raises(TargetUnreachable, match=r"public\.t"):
        writer_of(sink).position()
