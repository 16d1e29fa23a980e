"""Net changes: what a batch of changes leaves of each key.

A sink that keeps a table's current state needs the last state of each key, not the way to it.
The rules (contracts, section 7):

- The last change of a row decides; its key may change on the way (:mod:`.lineage`).
- A value that a change does not carry (unchanged TOAST) comes from an earlier change of the
  same row in the batch, else from the target, under the key that the row had before the batch.
- A DELETE or TRUNCATE ends a row. A row that came after it takes nothing from the target.
- A value that has no source is an error, never NULL.

Common batches are whole-array work; only rows whose key changes are followed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.changes.events import Events, lay_out, table_name
from pgsluice.changes.lineage import Keys, Lineages, follow, number_keys
from pgsluice.columnar.changes import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Bytes,
    Int64s,
    Mask,
    RelationChanges,
)
from pgsluice.errors import TableError
from pgsluice.schema_rules import COPY_AGAIN


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many changes a batch has of each kind, before netting."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0

    @property
    def total(self) -> int:
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True, slots=True)
class NetChanges:
    """What has to happen to a table that stands where the batch begins.

    In this order: everything goes if ``truncated``; the sources of ``moved`` rows are read;
    the rows of ``deletes`` go; ``rows`` are inserted, or replace the row of the same key.

    Attributes:
        schema: the target's columns.
        key: names of the key columns; empty: ``rows`` are only ever added.
        truncated: true if nothing that the target has stays.
        rows: the final rows, at most one a key, in the order of their last change.
        absent: column name -> mask over ``rows``: true where the value is not in ``rows`` but
            in the target's row of the same key, or of the key in ``moved_keys``.
        moved: rows (indexes into ``rows``) with absent columns whose source has another key.
        moved_keys: the key columns of those sources, in the order of ``moved``.
        deletes: the key columns of rows from before the batch that are no more, and whose
            key no row of ``rows`` has.
        only_new: true if there are no deletes and the target has no row with a key of ``rows``:
            each came by an INSERT of the batch. They need not be looked up in the target.
        backfilled: columns that, if the target does not have them yet, cannot be added:
            existing rows hold values that the stream does not carry.
        counts: what the batch was made of.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    truncated: bool
    rows: pa.Table
    absent: Mapping[str, Mask]
    moved: Int64s
    moved_keys: pa.Table
    deletes: pa.Table
    only_new: bool
    backfilled: frozenset[str]
    counts: ChangeCounts

    @property
    def is_empty(self) -> bool:
        """True if the target stays as it is."""
        return not self.truncated and not len(self.rows) and not len(self.deletes)


def net_changes(
    changes: Sequence[RelationChanges], *, schema: pa.Schema, key: tuple[str, ...]
) -> NetChanges:
    """Find what a batch leaves of each key of one table.

    Args:
        changes: the table's runs, in any order; of several leaves for a partitioned table.
        schema: the target's columns.
        key: names of the key columns, unique at the source at any moment; empty for a table
            that only takes inserts.

    Raises:
        TableError: the changes cannot be applied to a table of current state; the message
            says what to do.
    """
    table = table_name(changes[0]) if changes else "the table"
    events = lay_out(changes, schema, key)
    counts = _counts(events.actions)
    truncates = np.flatnonzero(events.actions == TRUNCATE)
    truncated = bool(len(truncates))
    if truncated:
        events = events.after(int(truncates[-1]) + 1)
    if not key:
        return _appended(events, schema, truncated, counts, table)
    keys = number_keys(events, key)
    lineages = follow(events, keys, table)
    if truncated:
        lineages = Lineages(
            lineages.of_change, np.full_like(lineages.origin, -1), lineages.last_change
        )
    last = lineages.last_change[lineages.last_change >= 0]
    final = np.sort(last[events.actions[last] != DELETE])
    sources = _Sources(events, keys, lineages, final, table)
    rows, absent = sources.fill(schema)
    moved, moved_from = sources.moved(absent)
    gone, only_new = _against_before(keys, lineages, final)
    return NetChanges(
        schema=schema,
        key=key,
        truncated=truncated,
        rows=rows,
        absent=absent,
        moved=moved,
        moved_keys=keys.take(moved_from),
        deletes=keys.take(gone),
        only_new=only_new,
        backfilled=events.backfilled,
        counts=counts,
    )


def _counts(actions: Bytes) -> ChangeCounts:
    count = np.bincount(actions, minlength=256)
    return ChangeCounts(
        inserts=int(count[INSERT]),
        updates=int(count[UPDATE]),
        deletes=int(count[DELETE]),
        truncates=int(count[TRUNCATE]),
    )


def _appended(
    events: Events, schema: pa.Schema, truncated: bool, counts: ChangeCounts, table: str
) -> NetChanges:
    """All rows in order: the table has no key."""
    index = events.row_index
    for name, mask in events.absent.items():
        if mask[index].any():
            raise _no_source(table, name, int(np.count_nonzero(mask[index])))
    nothing = pa.schema([]).empty_table()
    return NetChanges(
        schema=schema,
        key=(),
        truncated=truncated,
        rows=pa.Table.from_arrays(
            [_taken(column, index) for column in events.rows.columns], schema=events.rows.schema
        ),
        absent={},
        moved=np.empty(0, np.int64),
        moved_keys=nothing,
        deletes=nothing,
        only_new=True,
        backfilled=events.backfilled,
        counts=counts,
    )


def _against_before(keys: Keys, lineages: Lineages, final: Int64s) -> tuple[Int64s, bool]:
    """Keys that had a row before the batch and have none after it; and whether no final row
    has a key that had one."""
    had_row = np.zeros(keys.count, np.bool_)
    met = lineages.origin[lineages.last_change >= 0]
    had_row[met[met >= 0]] = True
    replaced = bool(had_row[keys.after[final]].any())
    had_row[keys.after[final]] = False
    gone = np.flatnonzero(had_row)
    return gone, not replaced and not len(gone)


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the values of final rows come from; ``final`` are the rows' last changes."""

    events: Events
    keys: Keys
    lineages: Lineages
    final: Int64s
    table: str

    def fill(self, schema: pa.Schema) -> tuple[pa.Table, dict[str, Mask]]:
        """The final rows, and where their values are the target's."""
        own_rows = self.events.row_index[self.final]
        columns: list[pa.ChunkedArray] = []
        absent: dict[str, Mask] = {}
        for field in schema:
            mask = self.events.absent.get(field.name)
            index = own_rows
            if mask is not None and mask[own_rows].any():
                index = self._carried(field.name, mask, own_rows)
                if (index < 0).any():
                    absent[field.name] = index < 0
                    index = np.where(index < 0, own_rows, index)
            columns.append(_taken(self.events.rows.column(field.name), index))
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        return pa.Table.from_arrays(columns, schema=nullable), absent

    def moved(self, absent: Mapping[str, Mask]) -> tuple[Int64s, Int64s]:
        """Final rows with absent columns and another key than before, and that key."""
        any_absent = np.zeros(len(self.final), np.bool_)
        for mask in absent.values():
            any_absent |= mask
        origin = self.lineages.origin[self.lineages.of_change[self.final]]
        moved = np.flatnonzero(any_absent & (origin != self.keys.after[self.final]))
        return moved, origin[moved]

    def _carried(self, name: str, mask: Mask, own_rows: Int64s) -> Int64s:
        """For each final row the row whose value it has; -1: the target's.

        Each change that gives the column a value, and each INSERT and DELETE, is a mark. A
        row's value is that of the last mark in its lineage; without a mark it is the target's.
        """
        wanted = mask[own_rows]
        events, of_change = self.events, self.lineages.of_change
        chosen = np.zeros(len(self.lineages.origin), np.bool_)
        chosen[of_change[self.final[wanted]]] = True
        changes = np.flatnonzero(chosen[of_change])
        changes = changes[np.argsort(of_change[changes], kind="stable")]
        lineage, action = of_change[changes], events.actions[changes]
        # An action without a new tuple (DELETE) has row -1: whatever is read there is unused.
        carries = (action != DELETE) & ~mask[events.row_index[changes]]
        place = np.arange(len(changes))
        last_mark = np.maximum.accumulate(np.where(carries | (action != UPDATE), place, -1))
        ends = np.flatnonzero(np.append(lineage[1:] != lineage[:-1], True))
        starts = np.append(0, ends[:-1] + 1)
        mark = last_mark[ends]
        inside = mark >= starts
        from_batch = inside & carries[mark]
        from_target = ~inside & (self.lineages.origin[lineage[ends]] >= 0)
        if not (from_batch | from_target).all():
            count = int(np.count_nonzero(~(from_batch | from_target)))
            raise _no_source(self.table, name, count)
        source = np.empty(len(self.lineages.origin), np.int64)
        source[lineage[ends]] = np.where(from_batch, events.row_index[changes][mark], -1)
        result = own_rows.copy()
        result[wanted] = source[of_change[self.final[wanted]]]
        return result


def _taken(column: pa.ChunkedArray, index: Int64s) -> pa.ChunkedArray:
    """``column.take``, without a copy where that is all of it (a batch of inserts)."""
    if len(index) == len(column) and bool((index[1:] > index[:-1]).all()):
        return column
    return column.take(pa.array(index))


def _no_source(table: str, column: str, count: int) -> TableError:
    return TableError(
        f"{count} row(s) of {table} came without the value of column {column!r}, and neither"
        " the stream nor the target has it",
        hint=f"run ALTER TABLE {table} REPLICA IDENTITY FULL, so that the server sends large"
        f" values with every change, then {COPY_AGAIN}",
        table=table,
        column=column,
        count=count,
    )
