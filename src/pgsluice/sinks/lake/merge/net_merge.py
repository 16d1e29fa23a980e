"""Turns net changes into one edit of a table, and writes its files.

With merge-on-read, updated and deleted rows are added to their files' deletion vectors, and updated
and inserted rows are written to a new file. With merge-on-write, the files of such rows are
rewritten. If a large batch changes a large part of a file, that file is rewritten in any case: it
costs as much as a vector, and readers have less work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import resolve_keys, resolve_rekeyed, with_values
from pgsluice.changes.whole_rows import WholeRows
from pgsluice.sinks.contract import StagedChanges
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.copied_rows import fitting_rows
from pgsluice.sinks.lake.data_files import dead_rows, fetch_vectors, live_batches, whole_groups
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.keys.entries import Hits, Indexes
from pgsluice.sinks.lake.keys.index import KeyIndex
from pgsluice.sinks.lake.merge.key_scan import KeyScan
from pgsluice.sinks.lake.merge.whole_rows import equal_rows, first_of_each
from pgsluice.sinks.lake.snapshot import PREFIX, DataFile, Snapshot

LARGE_SHARE = 0.2
"""The share of a table's rows from which a batch also rewrites files of which it changes as
much."""

Rewrites = Literal["nothing", "large", "all"]
"""Which of the files with updated or deleted rows to rewrite: those of which a large batch changes
much, all, or none. It must be none if other tasks merge into the same version: they find their rows
in the old files."""


FindsKeys = KeyIndex | KeyScan
"""Finds the rows of keys, and reads them."""


@dataclass(slots=True)
class Merged:
    """The result of a merge, ready to commit, with its counts; ``rows_copied`` are unchanged rows
    that were rewritten."""

    edit: Edit = field(default_factory=Edit)
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    rows_copied: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The rows inserted, updated, deleted and skipped, in the order of :class:`.Applied`."""
        return self.rows_inserted, self.rows_updated, self.rows_deleted, self.rows_skipped

    def count(self, other: Merged | StagedChanges) -> None:
        """Add the counts of rows of another merge."""
        self.rows_inserted += other.rows_inserted
        self.rows_updated += other.rows_updated
        self.rows_deleted += other.rows_deleted
        self.rows_skipped += other.rows_skipped


class NetMerge:
    """Merges into one version of a table with this title, by an index that finds the rows of keys;
    ``rewrites`` says which files to rewrite."""

    _prefix = PREFIX
    """Of the names of new data files."""

    def __init__(
        self, snapshot: Snapshot, index: FindsKeys, table: str, *, rewrites: Rewrites
    ) -> None:
        self._snapshot = snapshot
        self._index = index
        self._table = table
        self._rewrites = rewrites
        self._dead: dict[str, BitMap] = {}

    def apply(self, net: NetChanges, *, searches_new: bool) -> Merged:
        """Write the files of changes, without a commit.

        Args:
            searches_new: others may change the data: search the table, so that no key exists twice.
        """
        if net.unproved is not None:
            net.unproved.refuse_shared(self._live(net.unproved.keys).wanted, self._table)
        if net.is_empty:
            return Merged(rows_skipped=net.skipped)
        if net.truncated:
            merged = self._add(net)
            merged.edit.gone += self._snapshot.files
            return merged
        if net.whole_rows is not None:
            return self._merge_whole(net.whole_rows)
        is_new = net.only_new and not searches_new
        return self._add(net) if not net.key or is_new else self._merge(net)

    def _merge(self, net: NetChanges) -> Merged:
        """Write the files of changes with a key, without a TRUNCATE."""
        lacking, sources = 0, Live.joined([])
        if len(net.rekeyed):
            before, sources = len(net.rows), self._live(_keys(net.source_keys, net))
            net, row_of_source = resolve_keys(net, sources.has(len(net.source_keys)))
            sources = replace(sources, wanted=row_of_source[sources.wanted])
            lacking = before - len(net.rows)
        keys = pa.concat_tables([_keys(net.rows, net), _keys(net.deletes, net)])
        hits = self._live(keys)
        matched = hits.where(hits.wanted < len(net.rows))
        is_matched = matched.has(len(net.rows))
        is_mark = np.zeros(len(net.rows), np.bool_) if net.marked is None else net.marked
        inserted = int(np.count_nonzero(net.inserted & ~is_matched))
        updated = int(np.count_nonzero(is_matched & ~is_mark))
        deleted = len(hits.wanted) - len(matched.wanted)
        deleted += int(np.count_nonzero(is_matched & is_mark))
        lacking += int(np.count_nonzero(~is_mark)) - inserted - updated
        lacking += max(0, net.expected_deletes - deleted)
        merged = Merged(
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
            rows_skipped=net.skipped + lacking,
        )
        # A row whose key changed takes values from the row of its former key.
        is_rekeyed = sources.has(len(net.rows))
        givers = sources.and_others(matched.where(~is_rekeyed[matched.wanted]))
        rows = self._whole_rows(net, givers, is_matched | net.inserted)
        self._append(rows, merged, self._bury(hits, merged))
        return merged

    def _merge_whole(self, whole: WholeRows) -> Merged:
        live = self._equal(whole, whole.needed)
        found = live.count(len(whole.needed))
        if (found < whole.needed).any():  # some changes are skipped: how many have their row?
            live = self._equal(whole, whole.most)
            found = live.count(len(whole.needed))
        balance = whole.balance(found)
        merged = Merged(
            rows_inserted=balance.inserted,
            rows_updated=balance.updated,
            rows_deleted=balance.deleted,
            rows_skipped=balance.skipped,
        )
        rows = with_all_columns(whole.added(balance), self._snapshot.schema)
        gone = live.where(first_of_each(live.wanted, balance.taken))
        self._append(rows.to_batches(), merged, self._bury(gone, merged))
        return merged

    def _equal(self, whole: WholeRows, needed: Indexes) -> Live:
        """For each row of changes, so many live rows that are equal to it."""
        snapshot, wanted = self._snapshot, np.flatnonzero(needed)
        if not len(wanted):  # no index is made for changes that cancel
            return Live.joined([])
        unread = (file for name, file in snapshot.files.items() if name not in self._dead)
        fetch_vectors(snapshot.folder, unread)
        values = whole.values.take(pa.array(wanted))
        found = self._index.find(snapshot.files.values(), values)
        read, dead = self._index.rows_at, self._dead_rows
        live = Live.joined([*equal_rows(snapshot, found, read, dead, values, needed[wanted])])
        return replace(live, wanted=wanted[live.wanted])

    def _add(self, net: NetChanges) -> Merged:
        """Write the files of changes that only add rows."""
        merged = Merged(rows_inserted=len(net.rows), rows_skipped=net.skipped)
        rows = with_all_columns(net.rows, self._snapshot.schema)
        self._append(rows.to_batches(), merged)
        return merged

    def _live(self, keys: pa.Table) -> Live:
        """The live rows with these keys."""
        parts = []
        found = [*self._index.find(self._files(), keys)]
        unread = (file for file, _ in found if file.name not in self._dead)
        fetch_vectors(self._snapshot.folder, unread)
        for file, hits in found:
            if file.vector is not None:
                hits = hits.without(self._dead_rows(file))
            if len(hits.rows):
                parts.append((file, hits))
        return Live.joined(parts)

    def _whole_rows(
        self, net: NetChanges, givers: Live, is_kept: npt.NDArray[np.bool_]
    ) -> Iterator[pa.RecordBatch]:
        """The rows to write, with all columns of the table.

        Values that are missing in the changes are taken from the target's rows (``givers``): values
        that were not sent, and columns that the source no longer has. Such values may be much
        larger than all changes, so only some of them are in memory at a time.
        """
        schema = self._snapshot.schema
        left_out = [name for name in schema.names if name not in net.schema.names]
        lacking = {**net.absent, **dict.fromkeys(left_out, np.ones(len(net.rows), np.bool_))}
        rows = with_all_columns(net.rows, schema)
        takes = np.zeros(len(rows), np.bool_)
        for lacks in lacking.values():
            takes |= lacks
        givers = givers.where((takes & is_kept)[givers.wanted]).by_place()
        is_alone = is_kept.copy()
        is_alone[givers.wanted] = False
        alone = rows.filter(pa.array(is_alone))
        return chain(alone.to_batches(), self._filled(rows, lacking, givers))

    def _filled(
        self, rows: pa.Table, lacking: Mapping[str, npt.NDArray[np.bool_]], givers: Live
    ) -> Iterator[pa.RecordBatch]:
        """The rows that take values from other rows, in the order of those rows; ``lacking``: by
        column, the rows that take its value."""
        wanted = pa.schema([self._snapshot.schema.field(name) for name in lacking])
        rows = rows.combine_chunks()  # some are taken for each part: that searches all chunks
        for file, indexes in givers.by_file():
            taking = givers.wanted[indexes]
            for values in self._index.rows_at(file, givers.rows[indexes], wanted):
                some, taking = taking[: len(values)], taking[len(values) :]
                filled = rows.take(pa.array(some))
                for name, lacks in lacking.items():
                    given = values.column(name).filter(pa.array(lacks[some]))
                    filled = with_values(filled, name, lacks[some], given)
                yield from filled.combine_chunks().to_batches()

    def _bury(self, hits: Live, merged: Merged) -> list[tuple[DataFile, BitMap]]:
        """Add rows to their files' deletion vectors; files without live rows are removed.

        Files to rewrite are also removed; they are returned with their deleted rows.
        """
        folder = self._snapshot.folder
        is_all = self._rewrites == "all"
        is_large = self._rewrites == "large" and len(hits.rows) > LARGE_SHARE * self._count_live()
        rewritten = []
        for file, indexes in hits.by_file():
            vector = self._dead_rows(file) | BitMap(hits.rows[indexes].astype(np.uint32))
            rows = file.rows(folder)
            if len(vector) == rows:
                merged.edit.gone.append(file.name)
            elif is_all or (is_large and len(vector) > LARGE_SHARE * rows):
                merged.edit.gone.append(file.name)
                rewritten.append((file, vector))
                merged.rows_copied += rows - len(vector)
            else:
                merged.edit.dead[file.name] = vector
        return rewritten

    def _dead_rows(self, file: DataFile) -> BitMap:
        """The deleted rows of a file of the version; each vector is read once."""
        if file.name not in self._dead:
            self._dead[file.name] = dead_rows(self._snapshot.folder, file)
        return self._dead[file.name]

    def _count_live(self) -> int:
        folder = self._snapshot.folder
        return sum(
            file.rows(folder) - (0 if file.vector is None else file.vector.cardinality)
            for file in self._files()
        )

    def _files(self) -> Iterable[DataFile]:
        """The files that may have a row of a key."""
        return self._snapshot.files.values()

    def _append(
        self,
        rows: Iterable[pa.RecordBatch],
        merged: Merged,
        rewritten: Sequence[tuple[DataFile, BitMap]] = (),
    ) -> None:
        """Write rows to new files, after the live rows of the rewritten files."""
        schema, folder = self._snapshot.schema, self._snapshot.folder
        kept = live_batches(folder, rewritten, schema)
        batches = whole_groups(chain(kept, (batch.cast(schema) for batch in rows)))
        merged.edit.new += staging.write_files(
            folder,
            schema,
            fitting_rows(batches, schema, self._table),
            self._index if isinstance(self._index, KeyIndex) else None,
            prefix=self._prefix,
            layout=self._snapshot.layout,
        )


def first_rows(net: NetChanges, types: pa.Schema) -> tuple[pa.Table, int]:
    """The rows of a table that starts with changes instead of a copy, in the target's types, and
    the number of skipped changes: the table does not have the other rows."""
    if net.whole_rows is not None:
        balance = net.whole_rows.balance(np.zeros_like(net.whole_rows.needed))
        return with_all_columns(net.whole_rows.added(balance), types), balance.skipped
    net, skipped = resolve_rekeyed(net, net.rows.slice(0, 0))
    inserted = net.rows.filter(pa.array(net.inserted))
    skipped += net.skipped + len(net.rows) - len(inserted) + net.expected_deletes
    skipped -= 0 if net.marked is None else int(np.count_nonzero(net.marked))
    schema = pa.schema([field.with_nullable(field.name not in net.key) for field in types])
    return with_all_columns(inserted, schema), skipped


@dataclass(frozen=True, slots=True)
class Live:
    """n live rows with wanted keys: n indexes of wanted keys, n indexes of ``files``, and n row
    numbers there."""

    files: Sequence[DataFile]
    wanted: Indexes
    file_of: Indexes
    rows: Indexes

    @classmethod
    def joined(cls, parts: Sequence[tuple[DataFile, Hits]]) -> Live:
        """Join the hits of several data files, which are live rows."""
        nothing = [np.empty(0, np.int64)]
        return cls(
            [file for file, _ in parts],
            np.concatenate(nothing + [hits.wanted for _, hits in parts]),
            np.concatenate(nothing + [np.full(len(h.rows), i) for i, (_, h) in enumerate(parts)]),
            np.concatenate(nothing + [hits.rows for _, hits in parts]),
        )

    def and_others(self, others: Live) -> Live:
        """Combine these and other rows, which may have the same wanted keys."""
        return Live(
            [*self.files, *others.files],
            np.concatenate([self.wanted, others.wanted]),
            np.concatenate([self.file_of, others.file_of + len(self.files)]),
            np.concatenate([self.rows, others.rows]),
        )

    def by_place(self) -> Live:
        """The same rows, sorted by file and row number; one for each key."""
        _, first = np.unique(self.wanted, return_index=True)
        order = first[np.lexsort((self.rows[first], self.file_of[first]))]
        return Live(self.files, self.wanted[order], self.file_of[order], self.rows[order])

    def count(self, wanted: int) -> Indexes:
        """The number of live rows of each wanted key; ``wanted`` is the number of these keys."""
        return np.bincount(self.wanted, minlength=wanted)

    def has(self, count: int) -> npt.NDArray[np.bool_]:
        """For each wanted key, whether it has a live row; ``count`` is the number of these keys."""
        found = np.zeros(count, np.bool_)
        found[self.wanted] = True
        return found

    def where(self, mask: npt.NDArray[np.bool_]) -> Live:
        """The rows for which the mask is true."""
        return Live(self.files, self.wanted[mask], self.file_of[mask], self.rows[mask])

    def by_file(self) -> Iterator[tuple[DataFile, Indexes]]:
        """Each data file that has such rows, with their indexes in this object."""
        for number, file in enumerate(self.files):
            indexes = np.flatnonzero(self.file_of == number)
            if len(indexes):
                yield file, indexes


def _keys(rows: pa.Table, net: NetChanges) -> pa.Table:
    """The key columns of changes, all in the same types."""
    types = pa.schema([pa.field(name, net.schema.field(name).type) for name in net.key])
    return rows.select(net.key).cast(types)
