"""Rows of single partitions are copied after a kill between a commit and its fold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from pgsluice.changes.net import delete_rows
from pgsluice.lsn import Lsn
from pgsluice.rejects.copied import CopiedRejects
from pgsluice.rejects.events import Event, Kind
from pgsluice.rejects.files import EventFiles
from pgsluice.rejects.folding import CommittedTable, Folding
from pgsluice.rejects.keys import key_texts
from pgsluice.rejects.table import RejectsPlace
from pgsluice.stores.local import LocalFolder

OID, SCHEMA = 7, pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])
KEYS = pa.table({"id": [1, 2]}, schema=pa.schema([SCHEMA.field("id")]))


class WatchedFolder(LocalFolder):
    """A folder in which something happens before its first file is read."""

    pending: ClassVar[list[Callable[[], object]]] = []

    def read(self, name: str) -> bytes:
        while self.pending:
            self.pending.pop()()
        return super().read(name)


def place_with_unfolded_reject(folder: Path) -> RejectsPlace:
    """Where the row with the key 1 has a reject in a file that is not folded yet."""
    sink = {"type": "delta", "path": f"{folder}/{{schema}}/{{table}}"}
    files = EventFiles(WatchedFolder(folder / "events"))
    place = RejectsPlace(sink, None, "lake", "spool", files, accepts=True)
    key = key_texts([pa.array([1])], ["id"])[0].as_py()
    files.write(OID, 1, Lsn(100), [Event(110, 0, Kind.REJECTED, key, "x", "inf")])
    return place


def rejects_after_a_load(place: RejectsPlace) -> list[int | None]:
    """The positions at which rejects ended, after rows of partitions are loaded at 200."""
    copied = CopiedRejects(place, OID, 1, Lsn(200), ("id",), is_copy=False)
    assert len([*copied.deleting([delete_rows(KEYS, SCHEMA, ("id",))])]) == 1
    copied.write()
    Folding(place).fold({OID: CommittedTable("public", "t", 1, Lsn(200))})
    return [each.resolved_position for each in place.table().rejects([OID])]


def test_a_reject_that_is_not_folded_yet_ends_with_its_row(tmp_path: Path) -> None:
    assert rejects_after_a_load(place_with_unfolded_reject(tmp_path)) == [200]


def test_a_reject_that_is_folded_meanwhile_ends_with_its_row(tmp_path: Path) -> None:
    place = place_with_unfolded_reject(tmp_path)
    committed = {OID: CommittedTable("public", "t", 1, Lsn(110))}
    WatchedFolder.pending.append(lambda: Folding(place).fold(committed))
    assert rejects_after_a_load(place) == [200]
    assert not WatchedFolder.pending
