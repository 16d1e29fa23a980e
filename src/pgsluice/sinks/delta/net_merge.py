"""Net changes as the actions of one commit, and the files that these name.

Either rows that are updated or deleted die by their files' deletion vectors, and updated and
inserted rows go into a new file (merge-on-read). Or the files that have such rows are written anew
(merge-on-write); so is a file of which a large batch hits a large part: that costs as much as a
vector, and readers have less to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import columns_of_sources, resolve_rekeyed
from pgsluice.sinks.delta import staging
from pgsluice.sinks.delta.columns import with_all_columns
from pgsluice.sinks.delta.commit import added, removed, with_vector
from pgsluice.sinks.delta.copied_rows import CopiedRows
from pgsluice.sinks.delta.data_files import dead_rows, live_batches, rows_at, whole_groups
from pgsluice.sinks.delta.deletion_vectors import write_vectors
from pgsluice.sinks.delta.key_entries import Hits, Indexes
from pgsluice.sinks.delta.snapshot import DataFile, Snapshot

LARGE_SHARE = 0.2
"""A batch that hits a larger part of a table's rows rewrites the files that it hits so much."""

Rewrites = Literal["nothing", "large", "all"]
"""Which of the files with updated or deleted rows are written anew: those that a large batch hits
much, all, or none. Where other tasks merge into the same version it must be none: they find their
rows in the old files."""


class FindsKeys(Protocol):
    """Finds the rows of keys."""

    def find(self, files: Iterable[DataFile], wanted: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
        """The rows of each file that have one of the wanted keys; files without any are left
        out."""

    def add(self, name: str, keys: pa.Table) -> None:
        """Take note of a data file that has just been written, with the keys of its rows."""


@dataclass(slots=True)
class Merged:
    """What a merge wants to commit, and what it counts.

    Attributes:
        actions: that take the table to the state after the changes.
        rows_copied: rows that did not change and were written anew.
        bytes_written: of data files and vectors.
    """

    actions: list[dict[str, Any]] = field(default_factory=list)
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    rows_copied: int = 0
    bytes_written: int = 0


class NetMerge:
    """Merges into one version of a table.

    Args:
        snapshot: the version.
        index: finds the rows of keys.
        table: its title, for messages.
        rewrites: which files are written anew.
    """

    def __init__(
        self, snapshot: Snapshot, index: FindsKeys, table: str, *, rewrites: Rewrites
    ) -> None:
        self._snapshot = snapshot
        self._index = index
        self._table = table
        self._rewrites = rewrites
        self._dead: dict[str, BitMap] = {}

    def apply(self, net: NetChanges, *, searches_new: bool) -> Merged:
        """Write the files of changes; nothing is committed.

        Args:
            searches_new: others may change the data: a search makes sure that no key comes twice.
        """
        if net.is_empty:
            return Merged(rows_skipped=net.skipped)
        if net.truncated:
            return self.replace(net)
        is_new = net.only_new and not searches_new
        return self.append(net) if not net.key or is_new else self.merge(net)

    def merge(self, net: NetChanges) -> Merged:
        """Write the files of changes that do not truncate; nothing is committed.

        Args:
            net: with a key.
        """
        lacking = 0
        if len(net.rekeyed):
            net, lacking = self._without_rekeyed(net)
        keys = pa.concat_tables([_keys(net.rows, net), _keys(net.deletes, net)])
        hits = self._live(keys)
        matched = hits.among(0, len(net.rows))
        is_matched = np.zeros(len(net.rows), np.bool_)
        is_matched[matched.wanted] = True
        rows = self._whole_rows(net, matched, is_matched | net.inserted)
        inserted = int(np.count_nonzero(net.inserted & ~is_matched))
        updated = int(np.count_nonzero(is_matched))
        deleted = len(hits.wanted) - len(matched.wanted)
        lacking += len(net.rows) - inserted - updated + max(0, net.expected_deletes - deleted)
        merged = Merged(
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
            rows_skipped=net.skipped + lacking,
        )
        self._append(rows, net.key, merged, self._bury(hits, merged))
        return merged

    def append(self, net: NetChanges) -> Merged:
        """Write the files of changes that only add rows; nothing is committed."""
        merged = Merged(rows_inserted=len(net.rows), rows_skipped=net.skipped)
        self._append(with_all_columns(net.rows, self._snapshot.schema), net.key, merged)
        return merged

    def replace(self, net: NetChanges) -> Merged:
        """The same for changes that truncate the table before."""
        merged = self.append(net)
        merged.actions[:0] = [removed(file) for file in self._snapshot.files.values()]
        return merged

    def _without_rekeyed(self, net: NetChanges) -> tuple[NetChanges, int]:
        hits = self._live(_keys(net.source_keys, net))
        return resolve_rekeyed(net, self._values(hits, columns_of_sources(net)))

    def _live(self, keys: pa.Table) -> _Live:
        """The live rows with these keys."""
        parts = []
        for file, hits in self._index.find(self._snapshot.files.values(), keys):
            if file.vector is not None:
                hits = _without_dead(hits, self._dead_rows(file))
            if len(hits.rows):
                parts.append((file, hits))
        return _Live.joined(parts)

    def _whole_rows(
        self, net: NetChanges, matched: _Live, is_kept: npt.NDArray[np.bool_]
    ) -> pa.Table:
        """The rows to write, with all columns of the table.

        A value that the changes lack comes from the row that the target has: what was not sent,
        and columns that the source no longer has.
        """
        schema = self._snapshot.schema
        left_out = [name for name in schema.names if name not in net.schema.names]
        everywhere = np.ones(len(net.rows), np.bool_)
        lacking = {**net.absent, **dict.fromkeys(left_out, everywhere)}
        rows = with_all_columns(net.rows, schema)
        if lacking:
            lacks_any = np.logical_or.reduce(list(lacking.values()))
            needed = matched.where(lacks_any[matched.wanted])
            values = self._values(needed, list(lacking))
            for name, lacks in lacking.items():
                rows = _filled(rows, name, values.column(name), needed.wanted, lacks)
        return rows.filter(pa.array(is_kept))

    def _values(self, hits: _Live, names: Sequence[str]) -> pa.Table:
        """Columns of live rows, in the order of the hits."""
        schema = pa.schema([self._snapshot.schema.field(name) for name in names])
        parts, order = [schema.empty_table()], [np.empty(0, np.int64)]
        for file, indexes in hits.by_file():
            parts.append(rows_at(self._snapshot.folder, file, hits.rows[indexes], schema))
            order.append(indexes)
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(parts).take(pa.array(back))

    def _bury(self, hits: _Live, merged: Merged) -> list[tuple[DataFile, BitMap]]:
        """Let rows die, by their files' vectors; files without live rows leave the table.

        So do the files that are to be written anew: these are returned, with their dead rows.
        """
        folder = self._snapshot.folder
        is_all = self._rewrites == "all"
        is_large = self._rewrites == "large" and len(hits.rows) > LARGE_SHARE * self._count_live()
        vectors, files, rewritten = [], [], []
        for file, indexes in hits.by_file():
            vector = self._dead_rows(file) | BitMap(hits.rows[indexes].astype(np.uint32))
            merged.actions.append(removed(file))
            rows = file.rows(folder)
            if len(vector) == rows:
                continue
            if is_all or (is_large and len(vector) > LARGE_SHARE * rows):
                rewritten.append((file, vector))
                merged.rows_copied += rows - len(vector)
            else:
                vectors.append(vector)
                files.append(file)
        descriptors, size = write_vectors(folder, vectors)
        merged.bytes_written += size
        for file, descriptor in zip(files, descriptors, strict=True):
            merged.actions.append(with_vector(file, descriptor, file.rows(folder)))
        return rewritten

    def _dead_rows(self, file: DataFile) -> BitMap:
        """The dead rows of a file of the version; each vector is read once."""
        if file.name not in self._dead:
            self._dead[file.name] = dead_rows(self._snapshot.folder, file)
        return self._dead[file.name]

    def _count_live(self) -> int:
        """How many rows the table has."""
        folder = self._snapshot.folder
        return sum(
            file.rows(folder) - (0 if file.vector is None else file.vector.cardinality)
            for file in self._snapshot.files.values()
        )

    def _append(
        self,
        rows: pa.Table,
        key: tuple[str, ...],
        merged: Merged,
        rewritten: Sequence[tuple[DataFile, BitMap]] = (),
    ) -> None:
        """Put rows into new files, after the live rows of the rewritten ones."""
        if not len(rows) and not rewritten:
            return
        schema, folder = self._snapshot.schema, self._snapshot.folder
        kept = live_batches(folder, rewritten, schema)
        batches = whole_groups(chain(kept, rows.cast(schema).to_batches()))
        copied = CopiedRows(batches, schema, self._table)
        written = staging.write_files(staging.folder_of_files(folder), schema, copied)
        for file in written:
            merged.actions.append(added(file["path"], file["size"], file["stats"]))
            merged.bytes_written += file["size"]
        if key and len(written) == 1 and not rewritten:
            self._index.add(written[0]["path"], rows.select(key))


@dataclass(frozen=True, slots=True)
class _Live:
    """n live rows that have wanted keys.

    Attributes:
        files: the files that have some.
        wanted: n indexes of wanted keys.
        file_of: n indexes of files.
        rows: n row numbers.
    """

    files: Sequence[DataFile]
    wanted: Indexes
    file_of: Indexes
    rows: Indexes

    @classmethod
    def joined(cls, parts: Sequence[tuple[DataFile, Hits]]) -> _Live:
        """Join the hits of files."""
        nothing = [np.empty(0, np.int64)]
        return cls(
            [file for file, _ in parts],
            np.concatenate(nothing + [hits.wanted for _, hits in parts]),
            np.concatenate(nothing + [np.full(len(h.rows), i) for i, (_, h) in enumerate(parts)]),
            np.concatenate(nothing + [hits.rows for _, hits in parts]),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> _Live:
        """Some of the rows."""
        return _Live(self.files, self.wanted[mask], self.file_of[mask], self.rows[mask])

    def among(self, start: int, end: int) -> _Live:
        """The rows of some wanted keys."""
        return self.where((self.wanted >= start) & (self.wanted < end))

    def by_file(self) -> Iterator[tuple[DataFile, Indexes]]:
        """Each file with the indexes of its rows."""
        for number, file in enumerate(self.files):
            indexes = np.flatnonzero(self.file_of == number)
            if len(indexes):
                yield file, indexes


def _filled(
    rows: pa.Table,
    name: str,
    values: pa.ChunkedArray,
    row_of_value: Indexes,
    lacks: npt.NDArray[np.bool_],
) -> pa.Table:
    """The same rows; those that lack the value of a column have one of ``values``."""
    own = rows.column(name)
    is_taken = lacks[row_of_value]
    index = np.arange(len(rows))
    index[row_of_value[is_taken]] = len(rows) + np.flatnonzero(is_taken)
    both = pa.chunked_array([*own.chunks, *values.chunks], type=own.type)
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), both.take(pa.array(index)))


def _without_dead(hits: Hits, vector: BitMap) -> Hits:
    dead = vector & BitMap(hits.rows.astype(np.uint32))
    if not dead:
        return hits
    is_live = ~np.isin(hits.rows, np.asarray(dead.to_array(), np.int64))
    return Hits(hits.wanted[is_live], hits.rows[is_live])


def _keys(rows: pa.Table, net: NetChanges) -> pa.Table:
    """The key columns of changes, all in the same types."""
    types = pa.schema([pa.field(name, net.schema.field(name).type) for name in net.key])
    return rows.select(net.key).cast(types)
