"""Turns the versions that changes make into one edit of a history.

The current versions of changed keys die in their files, and are written again as closed ones, to
files of their own that are never searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.history.columns import TIME, Closings, HistoryColumns
from pgsluice.changes.net import NetChanges
from pgsluice.columnar.changes import Int64s
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake import staging
from pgsluice.sinks.lake.copied_rows import fitting_rows
from pgsluice.sinks.lake.data_files import dead_rows, joined, live_batches, whole_groups
from pgsluice.sinks.lake.merge.net_merge import FindsKeys, Live, Merged, NetMerge, Rewrites
from pgsluice.sinks.lake.snapshot import (
    CLOSED,
    CURRENT,
    DataFile,
    NewFile,
    Snapshot,
    may_be_current,
    prefix_of,
)


class VersionMerge(NetMerge):
    """Merges versions into one version of a table that is a history; arguments as of
    :class:`.NetMerge`."""

    _prefix = CURRENT
    _columns: HistoryColumns

    def apply(self, net: NetChanges, *, searches_new: bool) -> Merged:
        """Merge net changes into the history: end current versions, and add new ones."""
        closings = net.closings
        assert closings is not None
        self._columns = closings.columns
        hits = Live.joined([]) if net.truncated else self._live(net.deletes)
        has = np.append(hits.has(len(net.deletes)), False)
        is_there = net.inserted | has[closings.sources]
        is_open = pc.is_null(net.rows.column(self._columns.valid_to)).to_numpy()
        givers = self._givers(closings.sources, hits)
        merged = Merged(rows_skipped=net.skipped + int(np.count_nonzero(~is_there)))
        old: Iterable[pa.RecordBatch] = ()
        if closings.truncated_at is not None:
            old = self._truncated(closings.truncated_at, merged)
        elif len(hits.rows):
            old = self._closed(hits, closings)
        made = self._whole_rows(net, givers, is_there & ~is_open)
        merged.edit.new += write_closed(self._snapshot, chain(made, old), self._table)
        current = self._whole_rows(net, givers, is_there & is_open)
        self._append(current, merged, self._bury(hits, merged))
        # Keys are counted, as in a target of current rows: versions in between do not count.
        opened, closed = int(np.count_nonzero(is_there & is_open)), len(hits.rows)
        merged.rows_updated = min(opened, closed)
        merged.rows_inserted = opened - merged.rows_updated
        merged.rows_deleted += closed - merged.rows_updated
        return merged

    def _files(self) -> Iterable[DataFile]:
        return may_be_current(self._snapshot.files.values())

    def _live(self, keys: pa.Table) -> Live:
        """The current versions with these keys."""
        hits = super()._live(keys)
        is_current = np.ones(len(hits.rows), np.bool_)
        schema = pa.schema([self._snapshot.schema.field(self._columns.valid_to)])
        for file, indexes in hits.by_file():
            if prefix_of(file) != CURRENT:
                indexes = indexes[np.argsort(hits.rows[indexes])]
                found = self._index.rows_at(file, hits.rows[indexes], schema)
                ends = pa.concat_tables([schema.empty_table(), *found]).column(0)
                is_current[indexes] = pc.is_null(ends).to_numpy()
        return hits.where(is_current)

    def _givers(self, sources: Int64s, hits: Live) -> Live:
        """For the rows of changes, the current versions from which they take values, by the wanted
        keys of these (``sources``); -1: none."""
        place = np.full(int(hits.wanted.max(initial=-1)) + 2, -1)
        place[hits.wanted] = np.arange(len(hits.wanted))
        at: Int64s = np.where(
            sources < len(place) - 1, place[np.minimum(sources, len(place) - 1)], -1
        )
        rows = np.flatnonzero(at >= 0)
        return Live(hits.files, rows, hits.file_of[at[rows]], hits.rows[at[rows]])

    def _closed(self, hits: Live, closings: Closings) -> Iterator[pa.RecordBatch]:
        """The current versions that end; columns that say so are not read."""
        schema = self._snapshot.schema
        read = pa.schema([field for field in schema if field.name not in self._columns.closing])
        files = [
            (file, indexes[np.argsort(hits.rows[indexes])]) for file, indexes in hits.by_file()
        ]
        keys = hits.wanted[np.concatenate([indexes for _, indexes in files])]
        pieces = (
            batch
            for file, indexes in files
            for rows in self._index.rows_at(file, hits.rows[indexes], read)
            for batch in rows.to_batches()
        )
        for rows in joined(pieces):
            some, keys = keys[: len(rows)], keys[len(rows) :]
            yield from self._columns.closed(
                with_all_columns(rows, schema),
                closings.positions[some],
                pa.array(closings.times[some], TIME),
            ).to_batches()

    def _truncated(self, at: tuple[int, int], merged: Merged) -> Iterator[pa.RecordBatch]:
        """All current versions, which end; closed ones beside them stay as they are."""
        position, time = at
        files = may_be_current(self._snapshot.files.values())
        merged.edit.gone += [file.name for file in files]
        with_dead = [(file, dead_rows(self._snapshot.folder, file)) for file in files]
        for file, dead in with_dead:
            merged.rows_deleted += file.rows(self._snapshot.folder) - len(dead)
        batches = live_batches(self._snapshot.folder, with_dead, self._snapshot.schema)
        return ended(batches, self._columns, position, pa.scalar(time, pa.int64()).cast(TIME))


def ended(
    batches: Iterable[pa.RecordBatch], columns: HistoryColumns, position: int, time: pa.Scalar
) -> Iterator[pa.RecordBatch]:
    """Versions of which the current ones end at a position."""
    for batch in batches:
        is_current = pc.is_null(batch.column(columns.valid_to))
        yield batch.filter(pc.invert(is_current))
        current = batch.filter(is_current)
        positions: Int64s = np.full(len(current), position, np.int64)
        times = pa.repeat(time, len(current))
        yield from columns.closed(current, positions, times).to_batches()


def write_closed(snapshot: Snapshot, rows: Iterable[pa.RecordBatch], table: str) -> list[NewFile]:
    """Write closed versions to files that are not searched."""
    schema, folder = snapshot.schema, snapshot.folder
    closed = fitting_rows(whole_groups(batch.cast(schema) for batch in rows), schema, table)
    return staging.write_files(folder, schema, closed, prefix=CLOSED, layout=snapshot.layout)


def merge_of(
    net: NetChanges, snapshot: Snapshot, index: FindsKeys, table: str, *, rewrites: Rewrites
) -> NetMerge:
    """What merges changes: into current rows, or into a history."""
    kind = NetMerge if net.closings is None else VersionMerge
    return kind(snapshot, index, table, rewrites=rewrites)
