"""The edit that turns a table's version into the next one.

A merge or upkeep makes an edit, and writes the new files. The format's commit stores it, with the
deleted rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from pgsluice.sinks.lake.snapshot import DataFile, NewFile, Snapshot
from pgsluice.sinks.lake.vectors import DeadRows


@dataclass(slots=True)
class Edit:
    """The files of a table that change.

    Attributes:
        gone: the names of files that are removed.
        dead: file name -> all deleted rows, for files that get more of them, including new files.
        new: files that are added.
        changes_data: False: the live rows only move to other files.
    """

    gone: list[str] = field(default_factory=list)
    dead: dict[str, BitMap] = field(default_factory=dict)
    new: list[NewFile] = field(default_factory=list)
    changes_data: bool = True

    @property
    def bytes_written(self) -> int:
        """The size of the data files that the edit adds, in bytes."""
        return bytes_of(self.new)

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """The version that a snapshot would become by this edit."""
        files = {**snapshot.files, **{file.name: file for file in self.new}}
        for name in self.gone:
            del files[name]
        for name, rows in self.dead.items():
            files[name] = replace(files[name], vector=DeadRows(rows))
        return replace(snapshot, version=snapshot.version + 1, files=files)


def bytes_of(files: Iterable[DataFile]) -> int:
    """The total size of data files in bytes."""
    return sum(file.size for file in files)
