"""A Delta table at one version: its files, with their dead rows, and what its log says besides.

:mod:`.log` reads it, and :mod:`.commit` makes the next one.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgsluice.errors import PgsluiceError
from pgsluice.sinks.delta.deletion_vectors import Descriptor
from pgsluice.stores.contract import Folder


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file of a table.

    Attributes:
        name: its path inside of the table's folder.
        action: the ``add`` action that made it live.
        vector: its dead rows; None: all rows are live.
        recorded_rows: how many rows it has, dead ones included; None: its writer did not say.
        since: the version from which on it is live; -1 where the log no longer tells.
        vector_since: the same for its vector.
    """

    name: str
    action: Mapping[str, Any] = field(compare=False, repr=False)
    vector: Descriptor | None = None
    recorded_rows: int | None = None
    since: int = -1
    vector_since: int = -1

    @property
    def size(self) -> int:
        """In bytes."""
        return int(self.action["size"])

    def statistics(self) -> dict[str, Any]:
        """Delta's statistics of the file; empty where its writer left them out."""
        text = self.action.get("stats")
        return json.loads(text) if text else {}

    def rows(self, folder: Folder) -> int:
        """How many rows the file has, dead ones included."""
        if self.recorded_rows is not None:
            return self.recorded_rows
        with self.open(folder) as parquet:
            return int(parquet.metadata.num_rows)

    def open(self, folder: Folder) -> AbstractContextManager[pq.ParquetFile]:
        """Open the file, as :func:`open_data_file` does."""
        return open_data_file(folder, self.name, self.action.get("size"))

    def share_of_dead(self, folder: Folder) -> float:
        """How large a part of the rows is dead."""
        return 0.0 if self.vector is None else self.vector.cardinality / self.rows(folder)


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
            f"a data file of the Delta table in {folder.uri} is not found: {name}",
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
        transactions: the ``txn`` actions, identifier -> version.
        removed: files of data and of vectors that are not live and may still be there, by their
            paths inside of the table's folder.
        tag: tells the newest commit's file from another one with its name.
    """

    folder: Folder
    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    schema: pa.Schema
    files: Mapping[str, DataFile]
    transactions: Mapping[str, int]
    removed: Mapping[str, Removed] = field(repr=False)
    tag: Hashable = field(default=None, compare=False)

    def transaction_version(self, name: str) -> int | None:
        """The version of a transaction identifier; None: no commit had it."""
        return self.transactions.get(name)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def has_vectors(self) -> bool:
        """Whether files of the table may have deletion vectors, and writers are to make them."""
        listed = self.protocol.get("writerFeatures") or ()
        wanted = self.configuration.get("delta.enableDeletionVectors")
        return "deletionVectors" in listed and wanted == "true"


def no_table(folder: Folder) -> Snapshot:
    """The place where a table will be made, as its version -1."""
    return Snapshot(folder, -1, {}, {}, pa.schema([]), {}, {}, {})
