"""A copy of a table that has a history: which versions end, and which stay open.

A row of the copy that is equal to the current version of its key is not added. All other current
versions end at the copy's position. Should a key have several open versions, each ends where the
next one begins, and the last one counts: whatever the target has, one version of a key stays open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from pgsluice.changes.history.columns import TIME, HistoryColumns
from pgsluice.changes.key_numbers import numbers_of
from pgsluice.changes.lineage import number_rows
from pgsluice.columnar.changes import Int64s, Mask
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.lake.data_files import dead_rows, grouped, numbered_rows, rows_at
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.history.merge import write_closed
from pgsluice.sinks.lake.keys.entries import are_equal
from pgsluice.sinks.lake.merge.key_scan import COMPARED_BYTES, COMPARED_ROWS, KeyScan
from pgsluice.sinks.lake.snapshot import DataFile, NewFile, Snapshot, may_be_current
from pgsluice.sinks.lake.staged_changes import edit_of
from pgsluice.sinks.lake.upkeep import write_live_rows


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
        all_followed, first = self._followed(history), 0
        for part in self._current(history, self.base.schema):
            rows = pa.concat_tables([rows for *_, rows in part])
            followed = all_followed.among(first, first + len(rows))
            first += len(rows)
            is_last = np.ones(len(rows), np.bool_)
            is_last[followed.numbers] = False
            is_ended = ~self._equal(rows, is_last)
            ends = np.cumsum([len(some) for *_, some in part])
            for (name, numbers, _), each in zip(part, np.split(is_ended, ends[:-1]), strict=True):
                self._kill(name, numbers[each])
            positions: Int64s = np.full(len(rows), int(position), np.int64)
            positions[followed.numbers] = followed.positions
            times = pc.replace_with_mask(pa.nulls(len(rows), TIME), ~is_last, followed.times)
            self.ended += int(np.count_nonzero(is_ended))
            where = pa.array(is_ended)
            closed = history.closed(rows.filter(where), positions[is_ended], times.filter(where))
            yield from closed.combine_chunks().to_batches()

    def _kill(self, name: str, rows: Int64s) -> None:
        if len(rows):
            if name not in self.dead:
                file = self.base.files.get(name)
                self.dead[name] = (
                    BitMap() if file is None else BitMap(dead_rows(self.base.folder, file))
                )
            self.dead[name] |= BitMap(rows.astype(np.uint32))

    def _equal(self, rows: pa.Table, is_last: Mask) -> Mask:
        """Which versions, of those that are their keys' last ones, have an equal row in the copy,
        which is then not added."""
        folder = self.base.folder
        is_kept = np.zeros(len(rows), np.bool_)
        scan = KeyScan(folder, pa.schema([rows.schema.field(name) for name in self.key]))
        wanted = pa.schema([rows.schema.field(name) for name in self.compared])
        for file, found in scan.find(self.copied, rows.select(self.key)):
            hits = found.where(is_last[found.wanted])
            order = np.argsort(hits.rows, kind="stable")
            places, numbers = hits.wanted[order], hits.rows[order]
            for copied in rows_at(folder, file, numbers, wanted):
                some, places = places[: len(copied)], places[len(copied) :]
                of_copy, numbers = numbers[: len(copied)], numbers[len(copied) :]
                is_equal = same_rows(rows.select(self.compared).take(pa.array(some)), copied)
                is_kept[some[is_equal]] = True
                self._kill(file.name, of_copy[is_equal])
        return is_kept

    def _current(
        self, history: HistoryColumns, schema: pa.Schema
    ) -> Iterator[list[tuple[str, Int64s, pa.Table]]]:
        """These columns of the current versions, in parts that fit into memory: the names of their
        files, their row numbers there, and they themselves."""
        pieces = chain.from_iterable(
            self._current_of(file, history, schema)
            for file in may_be_current(self.base.files.values())
        )
        return grouped(pieces, COMPARED_BYTES, COMPARED_ROWS, lambda each: each[2])

    def _current_of(
        self, file: DataFile, history: HistoryColumns, schema: pa.Schema
    ) -> Iterator[tuple[str, Int64s, pa.Table]]:
        folder = self.base.folder
        for numbers, rows in numbered_rows(folder, file, dead_rows(folder, file), schema):
            is_current = pc.is_null(rows.column(history.valid_to))
            yield file.name, numbers[is_current.to_numpy()], rows.filter(is_current)

    def _followed(self, history: HistoryColumns) -> _Followed:
        """The versions that have a later open one of their key. Of all keys, 32 bits are in memory,
        by which whole numbers and floats of that size differ; keys that share them are compared."""
        begin, end, time, *_ = history.names
        names = [*self.key, begin, end, time]
        schema = pa.schema([self.base.schema.field(name) for name in names])

        def parts() -> Iterator[tuple[pa.Table, npt.NDArray[np.uint32]]]:
            for part in self._current(history, schema):
                rows = pa.concat_tables([rows for *_, rows in part])
                hashes = numbers_of(rows.select(self.key)).numbers
                yield rows, (hashes ^ (hashes >> np.uint64(32))).astype(np.uint32)

        seen, twice = BitMap(), BitMap()
        for _, hashes in parts():
            unique, counts = np.unique(hashes, return_counts=True)
            some = BitMap(unique)
            twice |= BitMap(unique[counts > 1]) | (seen & some)
            seen |= some
        shared = np.asarray(twice.to_array(), np.uint32)
        found, numbers, first = [schema.empty_table()], [np.empty(0, np.int64)], 0
        for rows, hashes in parts() if twice else ():
            chosen = np.flatnonzero(np.isin(hashes, shared))
            found.append(rows.take(pa.array(chosen)))
            numbers.append(first + chosen)
            first += len(rows)
        return _Followed.of(pa.concat_tables(found), np.concatenate(numbers), self.key, begin, time)


@dataclass(frozen=True, slots=True)
class _Followed:
    """Open versions that a later one of their key follows.

    Attributes:
        numbers: theirs among all current versions, ascending.
        positions, times: where the following ones begin.
    """

    numbers: Int64s
    positions: Int64s
    times: pa.Array

    @classmethod
    def of(
        cls, rows: pa.Table, numbers: Int64s, key: Sequence[str], begin: str, time: str
    ) -> _Followed:
        """Those among some versions, which have these numbers."""
        keys, begins = number_rows(rows, tuple(key)), rows.column(begin).to_numpy()
        order = np.lexsort((begins, keys))
        is_same = keys[order[1:]] == keys[order[:-1]]
        before, after = order[:-1][is_same], order[1:][is_same]
        ascending = np.argsort(numbers[before])
        before, after = before[ascending], after[ascending]
        times = rows.column(time).cast(TIME).take(pa.array(after))
        return cls(numbers[before], begins[after], times.combine_chunks())

    def among(self, first: int, end: int) -> _Followed:
        """Those with numbers from ``first`` to before ``end``, which is counted from there."""
        low, high = np.searchsorted(self.numbers, (first, end)).tolist()
        numbers, positions = self.numbers[low:high] - first, self.positions[low:high]
        return _Followed(numbers, positions, self.times[low:high])


def same_rows(first: pa.Table, second: pa.Table) -> Mask:
    """Which rows of two tables with the same columns are equal; NULL and NaN are equal to
    themselves."""
    same = np.ones(len(first), np.bool_)
    for name in first.schema.names:
        kind = first.schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            same &= are_equal(first.select([name]), second.select([name]))
            continue
        one, other = first.column(name), second.column(name)
        same &= pc.equal(one.is_null(), other.is_null()).to_numpy()
        same &= pc.equal(one, other).fill_null(True).to_numpy()
    return same
