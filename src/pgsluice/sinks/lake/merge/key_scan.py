"""Finds the rows of keys by reading the key columns of files that the batch will rewrite.

It reads the key columns of each file that may have a wanted key. There is no index, because the
next batch will find other files. In the same way, it finds the rows that a copy does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.deleted_rows import TIME
from pgsluice.changes.key_numbers import numbers_of
from pgsluice.sinks.lake.data_files import grouped, rows_at
from pgsluice.sinks.lake.keys.entries import Hits, Indexes, KeyEntries, Wanted
from pgsluice.sinks.lake.layout.layout import with_partition
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.sinks.lake.upkeep import live_rows
from pgsluice.stores.contract import Folder

COMPARED_ROWS = 500_000
COMPARED_BYTES = 64 * 2**20
"""How many rows are looked for in a copy at a time: for each part, its key columns are read."""


class KeyScan:
    """Finds the rows of keys of one table, whose key columns have the table's types."""

    def __init__(self, folder: Folder, keys: pa.Schema) -> None:
        self._folder = folder
        self._keys = keys

    def find(self, files: Iterable[DataFile], wanted: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
        """The rows of each file that have one of the wanted keys; files without any are missing."""
        keys, values = self._wanted(wanted)
        for file in files if len(keys.numbers) else ():
            if not lies_outside(file, values):
                hits = keys.among(self._candidates(file, keys))
                if hits is not None:
                    yield file, hits

    def rows_at(self, file: DataFile, rows: Indexes, schema: pa.Schema) -> Iterator[pa.Table]:
        """Some rows of a data file, read from the file itself, as :func:`.data_files.rows_at`."""
        return rows_at(self._folder, file, rows, schema)

    def _wanted(self, wanted: pa.Table) -> tuple[Wanted, dict[str, npt.NDArray[Any]]]:
        """The wanted keys, and their columns of whole numbers."""
        keys = Wanted(wanted, self._keys)
        return keys, sorted_integers(keys.keys)

    def _candidates(self, file: DataFile, wanted: Wanted) -> KeyEntries:
        """The rows of a file whose keys have the number of a wanted key."""
        with file.open(self._folder) as parquet:
            keys = parquet.read(columns=self._keys.names)
        keys = with_partition(keys, file.partition, self._keys)
        keys = keys.select(self._keys.names).cast(self._keys)
        numbered = numbers_of(keys)
        places = np.searchsorted(wanted.numbers, numbered.numbers)
        places[places == len(wanted.numbers)] = 0
        rows = np.flatnonzero(wanted.numbers[places] == numbered.numbers)
        return KeyEntries.of(keys, numbered, rows)


def sorted_integers(keys: pa.Table) -> dict[str, npt.NDArray[Any]]:
    """The values of each column of whole numbers without NULL, sorted."""
    return {
        field.name: np.sort(keys.column(field.name).to_numpy())
        for field in keys.schema
        if pa.types.is_integer(field.type) and not keys.column(field.name).null_count
    }


def lies_outside(file: DataFile, values: dict[str, npt.NDArray[Any]]) -> bool:
    """Whether some column has none of its (sorted) wanted values between the file's smallest and
    largest one. Bounds of whole numbers are exact for every writer."""
    statistics = file.statistics() if values else {}
    smallest, largest = statistics.get("minValues") or {}, statistics.get("maxValues") or {}
    for name, wanted in values.items():
        if name in smallest and name in largest:
            first = np.searchsorted(wanted, smallest[name])
            if first == len(wanted) or wanted[first] > largest[name]:
                return True
    return False


def gone_rows(
    snapshot: Snapshot,
    copied: Sequence[DataFile],
    schema: pa.Schema,
    key: Sequence[str],
    deleted_column: str,
) -> Iterator[pa.RecordBatch]:
    """The rows of a version whose keys a copy does not have, deleted now unless they were before.

    Args:
        copied: the files of the copy.
        schema: the columns of the rows. A column is NULL if the table lacks it, or has values of
            another type.
        key: the key's columns, which have the same types in the table and in the copy.
    """
    scan = KeyScan(snapshot.folder, pa.schema([schema.field(name) for name in key]))
    now = pa.scalar(datetime.now(UTC), TIME)
    live = live_rows(snapshot, snapshot.files.values())
    for batches in grouped(live, COMPARED_BYTES, COMPARED_ROWS):
        rows = pa.Table.from_batches(batches)
        is_copied = np.zeros(len(rows), np.bool_)
        for _, hits in scan.find(copied, rows.select(key)):
            is_copied[hits.wanted] = True
        gone = rows.filter(pa.array(~is_copied))
        columns = [_as(gone, field) for field in schema]
        place = schema.get_field_index(deleted_column)
        columns[place] = pc.coalesce(columns[place], now)
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _as(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name in rows.schema.names:
        try:
            return rows.column(field.name).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    return pa.chunked_array([pa.nulls(len(rows), field.type)])
