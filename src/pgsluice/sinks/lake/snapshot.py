"""A table at one version: its files, with their dead rows.

The names of a history's files say which versions they have. Files of current versions may have
deleted rows. Programs of others that join files give them other names: such a file may have
versions of both kinds, and its rows are looked at.

A format's own folder reads it, and commits the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pgsluice.errors import PgsluiceError
from pgsluice.sinks.lake.layout.layout import NO_LAYOUT, NO_PARTITION, Layout, Partition
from pgsluice.sinks.lake.vectors import Vector
from pgsluice.stores.contract import Folder

PREFIX: Final = "part"
"""What the names of data files begin with, as those of other writers of lakes do."""
CLOSED: Final = "closed"
CURRENT: Final = "current"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file of a table.

    Attributes:
        name: its path inside the table's folder.
        size: its size in bytes.
        vector: its deleted rows; None: all rows are live.
        recorded_rows: its number of rows, including deleted ones; None: its writer did not record
            it.
        since: the first version with the file; -1 if unknown.
        vector_since: the first version with its current vector; -1 if unknown.
        partition: the values of partition columns that its rows share.
    """

    name: str
    size: int
    vector: Vector | None = None
    recorded_rows: int | None = None
    since: int = -1
    vector_since: int = -1
    partition: Partition = field(default_factory=dict, compare=False)

    def statistics(self) -> Mapping[str, Any]:
        """The statistics of its columns: ``minValues``, ``maxValues`` and ``nullCount``, each by
        column name, and ``numRecords``, as in Delta's log. Empty if its writer recorded none.
        """
        return {}

    def rows(self, folder: Folder) -> int:
        """The number of rows in the file, including deleted ones."""
        if self.recorded_rows is not None:
            return self.recorded_rows
        with self.open(folder) as parquet:
            return int(parquet.metadata.num_rows)

    @contextmanager
    def open(self, folder: Folder) -> Iterator[pq.ParquetFile]:
        """Open the file in the table's folder.

        Raises:
            PgsluiceError: the file does not exist.
        """
        try:
            source = folder.open(self.name, self.size)
        except FileNotFoundError:
            raise PgsluiceError(
                f"the data file {self.name} of the target in {folder.uri} does not exist",
                hint="restore this file from a backup, or copy the table again: `pgsluice copy "
                "CONFIG TABLE`",
                location=folder.uri,
            ) from None
        with source, pq.ParquetFile(source) as parquet:
            yield parquet

    def share_of_dead(self, folder: Folder) -> float:
        """The share of the file's rows that are deleted, from 0 to 1."""
        return 0.0 if self.vector is None else self.vector.cardinality / self.rows(folder)


@dataclass(frozen=True, slots=True)
class NewFile(DataFile):
    """A new file, which no version has yet.

    Attributes:
        known: its statistics.
    """

    known: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def statistics(self) -> Mapping[str, Any]:
        """The statistics that its writer has computed."""
        return self.known

    def as_json(self) -> dict[str, Any]:
        """The file without its deleted rows as JSON, for another process."""
        return {
            "path": self.name,
            "size": self.size,
            "stats": self.known,
            "partition": {**self.partition},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NewFile:
        """The file that :meth:`as_json` has written as this value."""
        known = value["stats"]
        rows = known.get("numRecords")
        return cls(
            value["path"],
            value["size"],
            recorded_rows=rows,
            partition=value.get("partition", NO_PARTITION),
            known=known,
        )


@dataclass(frozen=True, slots=True)
class Removed:
    """The versions that a removed file belonged to.

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
        files: the live files by name.
        removed: removed files of data and of vectors that may still exist, by their paths inside
            the table's folder.
        layout: which rows share files.
    """

    folder: Folder
    version: int
    schema: pa.Schema
    files: Mapping[str, DataFile]
    removed: Mapping[str, Removed] = field(repr=False)
    layout: Layout = field(default=NO_LAYOUT, kw_only=True)

    def live_names(self) -> set[str]:
        """The files of data and of vectors that the version needs."""
        vectors = (file.vector for file in self.files.values() if file.vector is not None)
        named = (vector.name(self.folder) for vector in vectors)
        return {*self.files, *(name for name in named if name is not None)}


def prefix_of(file: DataFile) -> str:
    """What the names of files with the same kind of versions begin with."""
    prefix, _, _ = file.name.partition("-")
    return prefix if prefix in (CLOSED, CURRENT) else PREFIX


def by_prefix(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    """Files by the prefix of their names, as :func:`prefix_of` finds it."""
    grouped: dict[str, list[DataFile]] = {}
    for file in files:
        grouped.setdefault(prefix_of(file), []).append(file)
    return grouped


def may_be_current(files: Iterable[DataFile]) -> list[DataFile]:
    """The files of a history that may have current versions: all but those of closed ones."""
    return [file for file in files if prefix_of(file) != CLOSED]
