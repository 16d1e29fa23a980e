"""A table at one version: its files, with their dead rows.

A format's own folder reads it, with what the format has besides, and commits the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgsluice.errors import PgsluiceError
from pgsluice.sinks.lake.vectors import Vector
from pgsluice.stores.contract import Folder


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file of a table.

    Attributes:
        name: its path inside of the table's folder.
        size: in bytes.
        vector: its dead rows; None: all rows are live.
        recorded_rows: how many rows it has, dead ones included; None: its writer did not say.
        since: the version from which on it is live; -1 where that is not known.
        vector_since: the same for its vector.
    """

    name: str
    size: int
    vector: Vector | None = None
    recorded_rows: int | None = None
    since: int = -1
    vector_since: int = -1

    def statistics(self) -> Mapping[str, Any]:
        """What is known of its columns: ``minValues``, ``maxValues`` and ``nullCount``, each by
        their names, and ``numRecords``; as in Delta's log. Empty where its writer left them out.
        """
        return {}

    def rows(self, folder: Folder) -> int:
        """How many rows the file has, dead ones included."""
        if self.recorded_rows is not None:
            return self.recorded_rows
        with self.open(folder) as parquet:
            return int(parquet.metadata.num_rows)

    def open(self, folder: Folder) -> AbstractContextManager[pq.ParquetFile]:
        """Open the file, as :func:`open_data_file` does."""
        return open_data_file(folder, self.name, self.size)

    def share_of_dead(self, folder: Folder) -> float:
        """How large a part of the rows is dead."""
        return 0.0 if self.vector is None else self.vector.cardinality / self.rows(folder)


@dataclass(frozen=True, slots=True)
class NewFile(DataFile):
    """A file that has just been written, and that no version has yet.

    Attributes:
        known: its statistics.
    """

    known: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def statistics(self) -> Mapping[str, Any]:
        """Those that its writer has counted."""
        return self.known

    def as_json(self) -> dict[str, Any]:
        """The file without its dead rows, for another process."""
        return {"path": self.name, "size": self.size, "stats": self.known}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NewFile:
        """From that JSON."""
        known = value["stats"]
        rows = known.get("numRecords")
        return cls(value["path"], value["size"], recorded_rows=rows, known=known)


@contextmanager
def open_data_file(folder: Folder, name: str, size: int | None = None) -> Iterator[pq.ParquetFile]:
    """A data file of a table, opened.

    Args:
        folder: the table's.
        name: the file's path inside of it.
        size: in bytes, if it is known.

    Raises:
        PgsluiceError: it is gone.
    """
    try:
        source = folder.open(name, size)
    except FileNotFoundError:
        raise PgsluiceError(
            f"a data file of the table in {folder.uri} is not found: {name}",
            hint="restore the file; or copy the table again",
            location=folder.uri,
        ) from None
    with source, pq.ParquetFile(source) as parquet:
        yield parquet


@dataclass(frozen=True, slots=True)
class Removed:
    """Which versions a file belonged to that is not live any more.

    Attributes:
        since: the first version, or an earlier one.
        until: the first version without it.
        time_ms: when that was, in milliseconds since 1970.
    """

    since: int
    until: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version.

    Attributes:
        folder: the table's.
        files: the live files by name.
        removed: files of data and of vectors that are not live and may still be there, by their
            paths inside of the table's folder.
    """

    folder: Folder
    version: int
    schema: pa.Schema
    files: Mapping[str, DataFile]
    removed: Mapping[str, Removed] = field(repr=False)

    def live_names(self) -> set[str]:
        """The files of data and of vectors that the version needs."""
        vectors = (file.vector for file in self.files.values() if file.vector is not None)
        named = (vector.name(self.folder) for vector in vectors)
        return {*self.files, *(name for name in named if name is not None)}
