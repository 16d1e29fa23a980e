"""A copy of a table that has a history: which versions end, and which stay open.

A row of the copy that is equal to the current version of its key is not added. All other current
versions end at the copy's position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from pgsluice.changes.history.columns import TIME, HistoryColumns
from pgsluice.columnar.changes import Int64s, Mask
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake.data_files import dead_rows, rows_at
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.history.files import may_be_current
from pgsluice.sinks.lake.history.merge import write_closed
from pgsluice.sinks.lake.layout.partitions import with_partition
from pgsluice.sinks.lake.merge.key_scan import KeyScan
from pgsluice.sinks.lake.snapshot import DataFile, NewFile, Snapshot
from pgsluice.sinks.lake.staged_changes import edit_of
from pgsluice.sinks.lake.upkeep import write_live_rows

_ROWS = 500_000
_BYTES = 64 * 2**20
"""How many rows are looked for at a time: each time, the key columns of the copy are read."""


def copied_edit(
    old: Snapshot,
    copied: Sequence[NewFile],
    table: TargetTable,
    history: HistoryColumns,
    position: Lsn,
    *,
    compared: Sequence[str],
    keeps_vectors: bool,
) -> tuple[Edit, int]:
    """The edit that makes the rows of a copy the current versions, and how many versions end.

    Args:
        old: the version before.
        copied: the files of the copy.
        table: the table, with all columns that it has afterwards.
        compared: the columns that make rows differ.
        keeps_vectors: deleted rows stay in their files; otherwise these files are rewritten.
    """
    schema = table.schema
    base = replace(old, schema=schema)
    if any(schema.field(each.name).type != each.type for each in old.schema):
        written = write_live_rows(base, [*old.files.values()])
        base = Edit([*old.files], new=written).applied(base)
    comparison = _Comparison(base, copied, table.key, compared)
    closed = write_closed(base, comparison.closed(history, position), table.title)
    last = edit_of(base, [*copied, *closed], set(), comparison.dead, keeps_vectors=keeps_vectors)
    after = last.applied(base).files
    new = [file for file in after.values() if isinstance(file, NewFile)]
    edit = Edit([name for name in old.files if name not in after], last.dead, new)
    return edit, comparison.ended


@dataclass(slots=True)
class _Comparison:
    """Current versions beside the rows of a copy.

    Attributes:
        base: the version before, with the columns of the copy.
        copied: the files of the copy.
        key: names of the key columns.
        compared: the columns that make rows differ.
        dead: the rows that go: ended versions, and copied rows that are equal to a version.
        ended: how many versions end.
    """

    base: Snapshot
    copied: Sequence[NewFile]
    key: Sequence[str]
    compared: Sequence[str]
    dead: dict[str, BitMap] = field(default_factory=dict)
    ended: int = 0

    def closed(self, history: HistoryColumns, position: Lsn) -> Iterator[pa.RecordBatch]:
        """The versions that end; ``dead`` is whole afterwards."""
        for part in self._parts(history):
            is_kept = self._equal(part.rows)
            places = np.flatnonzero(~is_kept)
            for number, name in enumerate(part.files):
                ending = part.numbers[places[part.file_of[places] == number]]
                self._kill(name, ending)
            self.ended += len(places)
            rows = part.rows.take(pa.array(places))
            positions: Int64s = np.full(len(rows), int(position), np.int64)
            no_times = pa.nulls(len(rows), TIME)
            yield from history.closed(rows, positions, no_times).combine_chunks().to_batches()

    def _kill(self, name: str, rows: Int64s) -> None:
        if len(rows):
            if name not in self.dead:
                file = self.base.files.get(name)
                self.dead[name] = (
                    BitMap() if file is None else BitMap(dead_rows(self.base.folder, file))
                )
            self.dead[name] |= BitMap(rows.astype(np.uint32))

    def _equal(self, rows: pa.Table) -> Mask:
        """Which versions have an equal row in the copy, which is then not added."""
        folder = self.base.folder
        is_kept = np.zeros(len(rows), np.bool_)
        scan = KeyScan(folder, pa.schema([rows.schema.field(name) for name in self.key]))
        wanted = pa.schema([rows.schema.field(name) for name in self.compared])
        for file, hits in scan.find(self.copied, rows.select(self.key)):
            order = np.argsort(hits.rows, kind="stable")
            places, numbers = hits.wanted[order], hits.rows[order]
            for copied in rows_at(folder, file, numbers, wanted):
                some, places = places[: len(copied)], places[len(copied) :]
                of_copy, numbers = numbers[: len(copied)], numbers[len(copied) :]
                is_equal = same_rows(rows.select(self.compared).take(pa.array(some)), copied)
                is_kept[some[is_equal]] = True
                self._kill(file.name, of_copy[is_equal])
        return is_kept

    def _parts(self, history: HistoryColumns) -> Iterator[_Versions]:
        """The current versions, some at a time."""
        held = _Versions([], [], [], [])
        for file in may_be_current(self.base.files.values()):
            for numbers, rows in _numbered(self.base, file):
                is_current = pc.is_null(rows.column(history.valid_to))
                held.add(file.name, numbers[is_current.to_numpy()], rows.filter(is_current))
                if held.is_full:
                    yield held
                    held = _Versions([], [], [], [])
        if held.files:
            yield held


@dataclass(slots=True)
class _Versions:
    """Versions, and where they are."""

    files: list[str]
    _numbers: list[Int64s]
    _file_of: list[Int64s]
    _rows: list[pa.Table]

    def add(self, name: str, numbers: Int64s, rows: pa.Table) -> None:
        """Add rows of one file."""
        if name not in self.files:
            self.files.append(name)
        self._numbers.append(numbers)
        self._file_of.append(np.full(len(rows), self.files.index(name)))
        self._rows.append(rows)

    @property
    def is_full(self) -> bool:
        """Whether no more should be in memory."""
        rows = sum(map(len, self._rows))
        return rows >= _ROWS or sum(part.nbytes for part in self._rows) >= _BYTES

    @property
    def numbers(self) -> Int64s:
        """The row number of each version in its file."""
        return np.concatenate(self._numbers)

    @property
    def file_of(self) -> Int64s:
        """The index of the file of each version."""
        return np.concatenate(self._file_of)

    @property
    def rows(self) -> pa.Table:
        """The versions."""
        return pa.concat_tables(self._rows)


def _numbered(snapshot: Snapshot, file: DataFile) -> Iterator[tuple[Int64s, pa.Table]]:
    """The live rows of a file with their numbers, one row group at a time."""
    is_dead = np.zeros(file.rows(snapshot.folder), np.bool_)
    is_dead[np.asarray(dead_rows(snapshot.folder, file).to_array(), np.int64)] = True
    start = 0
    with file.open(snapshot.folder) as parquet:
        names = [name for name in snapshot.schema.names if name in parquet.schema_arrow.names]
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, columns=names)
            rows = with_partition(rows, file.partition, snapshot.schema)
            rows = with_all_columns(rows, snapshot.schema)
            is_live = ~is_dead[start : start + len(rows)]
            yield start + np.flatnonzero(is_live), rows.filter(pa.array(is_live))
            start += len(rows)


def same_rows(first: pa.Table, second: pa.Table) -> Mask:
    """Which rows of two tables with the same columns are equal; NULL and NaN are equal to
    themselves."""
    same = np.ones(len(first), np.bool_)
    for name in first.schema.names:
        one, other = (_joined(table.column(name)) for table in (first, second))
        same &= _same(one, other)
    return same


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


def _same(first: pa.Array, second: pa.Array) -> Mask:
    is_null = first.is_null().to_numpy(zero_copy_only=False)
    same: Mask = is_null == second.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_struct(first.type):
        for child, other_child in zip(first.flatten(), second.flatten(), strict=True):
            same &= _same(child, other_child)
        return same
    if pa.types.is_list(first.type):
        lengths = [pc.list_value_length(each).fill_null(0).to_numpy() for each in (first, second)]
        same &= lengths[0] == lengths[1]
        ones, others = (each.filter(pa.array(same)).flatten() for each in (first, second))
        rows = np.repeat(np.flatnonzero(same), lengths[0][same])
        same[rows[~_same(ones, others)]] = False
        return same
    if pa.types.is_floating(first.type):
        kind = f"u{first.type.bit_width // 8}"
        one, other = (each.fill_null(0).to_numpy().view(kind) for each in (first, second))
        same &= one == other
        return same
    same &= pc.equal(first, second).fill_null(True).to_numpy(zero_copy_only=False)
    return same
