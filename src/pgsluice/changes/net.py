"""Net changes: the final state of each key after a batch of changes.

A sink that keeps a table's current state needs the last state of each key, not the changes
that led to it. The rules (contracts: net changes):

- The last change of a row decides; its key may have changed before (:mod:`.lineage`).
- A value that a change does not carry (unchanged TOAST) comes from an earlier change of the
  same row in the batch, else from the target, under the key that the row had before the batch.
- A DELETE or TRUNCATE ends a row. A row that is inserted after it takes no value from the
  target.
- A value that has no source is an error, never NULL.

Most batches are computed with whole arrays; only rows whose key changes are followed one by
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.changes.events import Events, join_runs, table_name
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
    """How to bring a table from the batch's start to its end.

    In this order: if ``truncated``, delete all rows; read the source rows of ``rekeyed``
    rows; delete the rows of ``deletes``; insert ``rows``, or replace the row of the same key.

    Attributes:
        schema: the target's columns.
        key: names of the key columns; empty for a table that only takes inserts.
        truncated: whether all rows of the target are deleted first.
        rows: the final rows, at most one for each key, in the order of their last change.
        absent: column name -> mask over ``rows``: true where the value has to be taken from
            the target's row of the same key, or for rekeyed rows of their source key.
        rekeyed: rows (indexes into ``rows``) with absent columns whose source row has another
            key.
        source_keys: the key columns of those source rows, in the order of ``rekeyed``.
        deletes: the key columns of the target's rows that end, unless a row of ``rows`` has
            their key.
        only_new: true if there are no deletes and each row was inserted in the batch: the
            target has no row with a key of ``rows``, and need not be searched.
        backfilled: columns that cannot be added to a target that lacks them: existing rows
            hold values that the stream does not carry.
        counts: the batch's changes before netting.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    truncated: bool
    rows: pa.Table
    absent: Mapping[str, Mask]
    rekeyed: Int64s
    source_keys: pa.Table
    deletes: pa.Table
    only_new: bool
    backfilled: frozenset[str]
    counts: ChangeCounts

    @property
    def is_empty(self) -> bool:
        """Whether the target's rows stay as they are."""
        return not self.truncated and not len(self.rows) and not len(self.deletes)


def net_changes(
    changes: Sequence[RelationChanges], *, schema: pa.Schema, key: tuple[str, ...]
) -> NetChanges:
    """Reduce a batch of changes to the final state of each key of one table.

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
    events = join_runs(changes, schema, key)
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
    rekeyed, source_keys = sources.rekeyed(absent)
    deleted, only_new = _compare_with_target(keys, lineages, final)
    return NetChanges(
        schema=schema,
        key=key,
        truncated=truncated,
        rows=rows,
        absent=absent,
        rekeyed=rekeyed,
        source_keys=keys.take(source_keys),
        deletes=keys.take(deleted),
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
    """All rows in order, for a table without a key."""
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
        rekeyed=np.empty(0, np.int64),
        source_keys=nothing,
        deletes=nothing,
        only_new=True,
        backfilled=events.backfilled,
        counts=counts,
    )


def _compare_with_target(keys: Keys, lineages: Lineages, final: Int64s) -> tuple[Int64s, bool]:
    """Keys whose rows the batch deleted, and whether all final rows are new to the target."""
    had_row = np.zeros(keys.count, np.bool_)
    origins = lineages.origin[lineages.last_change >= 0]
    had_row[origins[origins >= 0]] = True
    replaced = bool(had_row[keys.after[final]].any())
    had_row[keys.after[final]] = False
    deleted = np.flatnonzero(had_row)
    return deleted, not replaced and not len(deleted)


@dataclass(frozen=True, slots=True)
class _Sources:
    """Finds where the values of final rows come from; ``final`` has the rows' last changes."""

    events: Events
    keys: Keys
    lineages: Lineages
    final: Int64s
    table: str

    def fill(self, schema: pa.Schema) -> tuple[pa.Table, dict[str, Mask]]:
        """The final rows, and masks of the values that the target has to supply."""
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

    def rekeyed(self, absent: Mapping[str, Mask]) -> tuple[Int64s, Int64s]:
        """Final rows with absent columns and another key than before the batch, and that key."""
        any_absent = np.zeros(len(self.final), np.bool_)
        for mask in absent.values():
            any_absent |= mask
        origin = self.lineages.origin[self.lineages.of_change[self.final]]
        rekeyed = np.flatnonzero(any_absent & (origin != self.keys.after[self.final]))
        return rekeyed, origin[rekeyed]

    def _carried(self, name: str, mask: Mask, own_rows: Int64s) -> Int64s:
        """For each final row, the row of the batch that has its value; -1 for the target's row.

        Each change that gives the column a value, and each INSERT and DELETE, is a mark. The
        value comes from the last mark in the row's lineage; without a mark, from the target.
        """
        wanted = mask[own_rows]
        events, of_change = self.events, self.lineages.of_change
        chosen = np.zeros(len(self.lineages.origin), np.bool_)
        chosen[of_change[self.final[wanted]]] = True
        changes = np.flatnonzero(chosen[of_change])
        changes = changes[np.argsort(of_change[changes], kind="stable")]
        lineage, action = of_change[changes], events.actions[changes]
        # A DELETE has row -1: the mask's last element is read for it and then ignored.
        carries = (action != DELETE) & ~mask[events.row_index[changes]]
        indexes = np.arange(len(changes))
        last_mark = np.maximum.accumulate(np.where(carries | (action != UPDATE), indexes, -1))
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
    """``column.take``; the column itself if all of it is taken in order (a batch of inserts)."""
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
