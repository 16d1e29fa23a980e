"""Finds rows of a table without a key by all of their values.

Candidates are found by a hash of the row (:func:`.key_numbers.numbers_of_rows`), from an index or
from the files themselves; then their values are compared. A column that a file lacks counts as
NULL, in the hash, too: so an index stays valid when the table gets columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from pgsluice.changes.key_numbers import numbers_of, numbers_of_rows
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake.data_files import all_batches
from pgsluice.sinks.lake.keys.entries import Hits, Indexes, KeyEntries, Wanted, are_equal
from pgsluice.sinks.lake.keys.index import KeyIndex
from pgsluice.sinks.lake.merge.key_scan import KeyScan, sorted_integers
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.stores.contract import Folder

_NUMBERS = pa.schema([pa.field("", pa.int64())])


class RowIndex(KeyIndex):
    """The sidecars of one table with the hashes of its rows, which are compared by the columns
    ``rows``, in the table's types, but not by the columns ``left_out``."""

    def __init__(
        self,
        cache_dir: str | None,
        folder: Folder,
        rows: pa.Schema,
        left_out: Sequence[str] = (),
        *,
        shares: bool = True,
    ) -> None:
        meaning = f"whole rows without {json.dumps(sorted(left_out))}"
        super().__init__(cache_dir, folder, _NUMBERS, shares=shares, meaning=meaning)
        self._columns = rows

    @classmethod
    def of(
        cls, snapshot: Snapshot, cache_dir: str | None, key: Sequence[str], *, shares: bool = True
    ) -> RowIndex:
        """The sidecars of a table, by the names of the columns by which rows are compared."""
        schema = snapshot.schema
        left_out = [name for name in schema.names if name not in key]
        rows = pa.schema([field for field in schema if field.name in key])
        return cls(cache_dir, snapshot.folder, rows, left_out, shares=shares)

    def find(self, files: Iterable[DataFile], wanted: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
        """The rows of each file with the hash of a wanted row; files without any are missing."""
        return super().find(files, _numbered(wanted, self._columns))

    def keys_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The hashes of some rows of the table, by which a table without a key finds them."""
        numbers = _numbered(pa.Table.from_batches([rows]), self._columns)
        return numbers.combine_chunks().to_batches()[0]

    def _read_keys(self, file: DataFile) -> Iterator[pa.Table]:
        yield _numbers_of_file(self._table, file, self._columns)


class RowScan(KeyScan):
    """Finds rows by their hashes by reading all files that may have them, which the batch will
    rewrite; the key columns are those by which rows are compared."""

    def _wanted(self, wanted: pa.Table) -> tuple[Wanted, dict[str, npt.NDArray[Any]]]:
        return Wanted(_numbered(wanted, self._keys), _NUMBERS), sorted_integers(wanted)

    def _candidates(self, file: DataFile, wanted: Wanted) -> KeyEntries:
        numbers = _numbers_of_file(self._folder, file, self._keys)
        return KeyEntries.of(numbers, numbers_of(numbers))


def equal_rows(
    snapshot: Snapshot,
    candidates: Iterable[tuple[DataFile, Hits]],
    read: Callable[[DataFile, Indexes, pa.Schema], Iterable[pa.Table]],
    dead: Callable[[DataFile], BitMap],
    wanted: pa.Table,
    needed: Indexes,
) -> Iterator[tuple[DataFile, Hits]]:
    """For each wanted row, as many equal live rows as are needed, or as there are.

    Args:
        candidates: rows of files that may be equal.
        read: reads some rows of a file, as :func:`.data_files.rows_at`.
        dead: returns the deleted rows of a file.
        wanted: m distinct rows, with the columns by which rows are compared.
        needed: m numbers.
    """
    lacking = needed.copy()
    schema = pa.schema([snapshot.schema.field(name) for name in wanted.schema.names])
    rows = wanted.cast(schema).combine_chunks()
    for file, hits in candidates:
        hits = hits.where(lacking[hits.wanted] > 0).without(dead(file))
        equal = Hits.joined([])
        while len(hits.rows):
            is_chosen = first_of_each(hits.wanted, lacking)
            chosen, hits = hits.where(is_chosen), hits.where(~is_chosen)
            is_equal = _are_equal(read, file, chosen, rows)
            equal = Hits.joined([equal, chosen.where(is_equal)])
            lacking -= np.bincount(chosen.wanted[is_equal], minlength=len(lacking))
            # Unless other rows have the same hash, nothing is lacking, or nothing is left.
            hits = hits.where(lacking[hits.wanted] > 0)
        if len(equal.rows):
            yield file, equal
        if not lacking.any():
            return


def first_of_each(wanted: Indexes, most: Indexes) -> npt.NDArray[np.bool_]:
    """Which hits to take: of each wanted row the first ones, up to its number in ``most``;
    ``wanted`` has the index of each hit's wanted row."""
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    rank = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    chosen = np.zeros(len(wanted), np.bool_)
    chosen[order] = rank < most[ordered]
    return chosen


def _are_equal(
    read: Callable[[DataFile, Indexes, pa.Schema], Iterable[pa.Table]],
    file: DataFile,
    hits: Hits,
    wanted: pa.Table,
) -> npt.NDArray[np.bool_]:
    """Which hits are equal to their wanted rows."""
    is_equal = np.zeros(len(hits.rows), np.bool_)
    order = np.argsort(hits.rows, kind="stable")
    for values in read(file, hits.rows[order], wanted.schema):
        some, order = order[: len(values)], order[len(values) :]
        is_equal[some] = are_equal(wanted.take(pa.array(hits.wanted[some])), values)
    return is_equal


def _numbered(rows: pa.Table, types: pa.Schema) -> pa.Table:
    """The hashes of rows as a table; columns that they lack are NULL."""
    there = pa.schema([field for field in types if field.name in rows.schema.names])
    numbers = numbers_of_rows(with_all_columns(rows, there))
    return pa.table([pa.array(numbers.view(np.int64))], schema=_NUMBERS)


def _numbers_of_file(folder: Folder, file: DataFile, types: pa.Schema) -> pa.Table:
    """The hashes of all rows of a file, in their order."""
    batches = all_batches(folder, file, types)
    numbers = [_numbered(pa.Table.from_batches([batch]), types) for batch in batches]
    return pa.concat_tables([_NUMBERS.empty_table(), *numbers]).combine_chunks()
