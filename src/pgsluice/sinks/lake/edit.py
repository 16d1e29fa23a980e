"""What takes a table from one version to the next.

A merge or upkeep makes it, and writes the new files. The format's commit writes it down, with the
dead rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from pgsluice.sinks.lake.snapshot import DataFile, NewFile, Snapshot
from pgsluice.sinks.lake.vectors import DeadRows


@dataclass(slots=True)
class Edit:
    """The files that change.

    Attributes:
        gone: names of files that leave.
        dead: all dead rows of each file, by its name, that gets more of them and stays, or comes.
        new: files that come.
        changes_data: False: live rows only lie elsewhere.
    """

    gone: list[str] = field(default_factory=list)
    dead: dict[str, BitMap] = field(default_factory=dict)
    new: list[NewFile] = field(default_factory=list)
    changes_data: bool = True

    @property
    def bytes_written(self) -> int:
        """Of the new files."""
        return bytes_of(self.new)

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """The version after a snapshot as it would be, if this were committed."""
        files = {**snapshot.files, **{file.name: file for file in self.new}}
        for name in self.gone:
            del files[name]
        for name, rows in self.dead.items():
            files[name] = replace(files[name], vector=DeadRows(rows))
        return replace(snapshot, version=snapshot.version + 1, files=files)


def bytes_of(files: Iterable[DataFile]) -> int:
    """How large files are together."""
    return sum(file.size for file in files)
