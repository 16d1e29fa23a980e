"""Runs of one table laid end to end: one order, one schema, values filled from old tuples.

Decoding gives a table's changes in runs, one for each definition of the relation and, for a
partitioned table, for each leaf. Here they become one sequence in the target's columns:

- A column that a run's relation does not have is NULL in that run's rows: it was added later,
  or dropped before (contracts, section 9). If it was added later and rows from before hold
  something else than NULL, the stream does not carry it: the table must be copied again.
- A value that a new tuple does not carry is taken from the change's own old tuple where that
  has it: always for key columns, and for every column under REPLICA IDENTITY FULL.
- A value that its column cannot hold, and a key that is NULL or not there, is an error of the
  table. Nothing is ever guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.columnar.changes import (
    DELETE,
    KEY_ONLY,
    TRUNCATE,
    UPDATE,
    WHOLE_ROW,
    Bytes,
    Int64s,
    Mask,
    RelationChanges,
    Tuples,
)
from pgsluice.errors import Remedy, TableError
from pgsluice.schema_rules import COPY_AGAIN, raise_unless_possible, reconcile_target


@dataclass(frozen=True, slots=True)
class Events:
    """The changes of one table in commit order; n changes.

    Attributes:
        actions: n.
        rows: all new tuples, in the target's columns.
        row_index: n; row in ``rows``, or -1 (DELETE, TRUNCATE).
        absent: column name -> mask over ``rows``, true where no tuple carries the value.
        old_keys: the key columns of all old tuples.
        old_key_index: n; row in ``old_keys``, or -1.
        backfilled: columns for which rows from before they were added hold a value that the
            stream does not carry.
    """

    actions: Bytes
    rows: pa.Table
    row_index: Int64s
    absent: Mapping[str, Mask]
    old_keys: pa.Table
    old_key_index: Int64s
    backfilled: frozenset[str]

    def after(self, first: int) -> Events:
        """The changes from number ``first`` on; the rows stay where they are."""
        return Events(
            actions=self.actions[first:],
            rows=self.rows,
            row_index=self.row_index[first:],
            absent=self.absent,
            old_keys=self.old_keys,
            old_key_index=self.old_key_index[first:],
            backfilled=self.backfilled,
        )


def table_name(run: RelationChanges) -> str:
    """``schema.table``, as messages name it."""
    return f"{run.relation.namespace or 'pg_catalog'}.{run.relation.name}"


def lay_out(runs: Sequence[RelationChanges], schema: pa.Schema, key: tuple[str, ...]) -> Events:
    """Lay the runs of one table end to end, in (position, ordinal) order.

    Raises:
        TableError: a value does not fit, a key is NULL or not there, a column changed its
            type, or an action is not possible for the table.
    """
    backfilled = _backfilled(runs)
    parts = [_Part.of(run, schema, key, backfilled) for run in runs]
    rows = pa.Table.from_arrays(
        [_chunked([part.columns[i] for part in parts], field) for i, field in enumerate(schema)],
        schema=_nullable(schema),
    )
    key_fields = [schema.field(name) for name in key]
    old_keys = pa.Table.from_arrays(
        [_chunked([part.old_keys[i] for part in parts], f) for i, f in enumerate(key_fields)],
        schema=pa.schema(key_fields),
    )
    order = _order(runs)
    pairs = list(zip(runs, parts, strict=True))
    return Events(
        actions=np.concatenate([np.empty(0, np.uint8), *(run.actions for run in runs)])[order],
        rows=rows,
        row_index=_shifted([(run.new_index, part.row_count) for run, part in pairs])[order],
        absent=_joined_masks(parts, [field.name for field in schema]),
        old_keys=old_keys,
        old_key_index=_shifted([(run.old_index, part.old_count) for run, part in pairs])[order],
        backfilled=backfilled | _unknown(runs),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One run in the target's columns."""

    columns: list[pa.Array]
    row_count: int
    absent: dict[str, Mask]
    old_keys: list[pa.Array]
    old_count: int

    @classmethod
    def of(
        cls,
        run: RelationChanges,
        schema: pa.Schema,
        key: tuple[str, ...],
        backfilled: frozenset[str],
    ) -> _Part:
        places = {name: i for i, name in enumerate(run.schema.names)}
        _check_actions(run, key)
        verdict = reconcile_target(
            table_name(run), schema, run.schema, key=key, backfilled=backfilled if len(run) else ()
        )
        raise_unless_possible(verdict, table_name(run))
        row_count, old_count = _count(run.new_index), _count(run.old_index)
        columns: list[pa.Array] = []
        absent: dict[str, Mask] = {}
        for field in schema:
            place = places.get(field.name)
            if place is None:
                columns.append(pa.nulls(row_count, field.type))
                continue
            _check_fit(run, field.name, run.new.unfit.get(place))
            values, mask = _filled(run, place, is_key=field.name in key)
            if field.name in key:
                _check_key(run, field.name, values, mask)
            elif mask is not None:
                absent[field.name] = mask
            columns.append(_as_type(values, field.type))
        old_keys = [_old_key(run, places[name], name, schema.field(name).type) for name in key]
        return cls(columns, row_count, absent, old_keys, old_count)


def _check_actions(run: RelationChanges, key: tuple[str, ...]) -> None:
    """Updates and deletes need a key that old tuples carry."""
    table = table_name(run)
    root_oid = run.facts.root_oid if run.facts is not None else run.relation.oid
    if root_oid != run.relation.oid and (run.actions == TRUNCATE).any():
        raise TableError(
            f"partition {table} was truncated: the stream does not say which rows went",
            hint=COPY_AGAIN,
            table=table,
            remedy=Remedy.COPY,
        )
    changed = (run.actions == UPDATE) | (run.actions == DELETE)
    if not changed.any():
        return
    if not key:
        raise TableError(
            f"{table} has no key, so its updates and deletes cannot be applied",
            hint="give the table a primary key, name one in the subscription's `key`,"
            ' or use mode = "changelog"',
            table=table,
        )
    carried = {column.name for column in run.relation.columns if column.is_key}
    outside = [name for name in key if name not in carried]
    if outside:
        raise TableError(
            f"key column {', '.join(map(repr, outside))} of {table} is not part of its replica"
            " identity, so an update could change it unseen",
            hint="use the replica identity's columns as the key, or run:"
            f" ALTER TABLE {table} REPLICA IDENTITY FULL",
            table=table,
        )
    if (run.old_index[run.actions == DELETE] < 0).any():
        raise TableError(f"a DELETE of {table} came without an old tuple", table=table)


def _check_fit(run: RelationChanges, column: str, unfit: Mask | None) -> None:
    count = 0 if unfit is None else int(np.count_nonzero(unfit))
    if count:
        table = table_name(run)
        raise TableError(
            f"{count} value(s) of column {column!r} of {table} do not fit their target type",
            hint="choose another type for the column in the subscription's `types`, then copy"
            " the table again",
            table=table,
            column=column,
            count=count,
        )


def _check_key(run: RelationChanges, column: str, values: pa.Array, absent: Mask | None) -> None:
    table = table_name(run)
    missing = 0 if absent is None else int(np.count_nonzero(absent))
    if missing or values.null_count:
        what = "is not in" if missing else "is NULL in"
        raise TableError(
            f"key column {column!r} of {table} {what} {missing or values.null_count} row(s)",
            hint="choose a key of columns that are never NULL and part of the replica identity",
            table=table,
            column=column,
            count=missing or values.null_count,
        )


def _filled(run: RelationChanges, place: int, *, is_key: bool) -> tuple[pa.Array, Mask | None]:
    """A new tuples' column with what its own old tuples carry, and what is absent still."""
    values, absent = run.new.columns[place], run.new.absent.get(place)
    if absent is None or not absent.any():
        return values, None
    kinds = (WHOLE_ROW, KEY_ONLY) if is_key else (WHOLE_ROW,)
    changes = np.empty(len(values), np.int64)
    with_new = np.flatnonzero(run.new_index >= 0)
    changes[run.new_index[with_new]] = with_new
    old_rows = run.old_index[changes]
    usable = absent & (old_rows >= 0) & np.isin(run.old_kinds[changes], kinds)
    usable[usable] = ~_mask(run.old, place, "absent")[old_rows[usable]]
    if not usable.any():
        return values, absent
    unfit = _mask(run.old, place, "unfit")[old_rows[usable]]
    _check_fit(run, run.schema.field(place).name, unfit)
    index = np.arange(len(values))
    index[usable] = len(values) + old_rows[usable]
    both = pa.concat_arrays([values, run.old.columns[place]])
    still = absent & ~usable
    return both.take(pa.array(index)), still if still.any() else None


def _old_key(run: RelationChanges, place: int, name: str, type_: pa.DataType) -> pa.Array:
    values = run.old.columns[place]
    _check_fit(run, name, run.old.unfit.get(place))
    _check_key(run, name, values, run.old.absent.get(place))
    return _as_type(values, type_)


def _mask(tuples: Tuples, place: int, which: str) -> Mask:
    mask = (tuples.absent if which == "absent" else tuples.unfit).get(place)
    return np.zeros(len(tuples.columns[place]), np.bool_) if mask is None else mask


def _backfilled(runs: Sequence[RelationChanges]) -> frozenset[str]:
    """Columns whose value in rows from before ADD COLUMN is not known to be NULL."""
    facts = runs[-1].facts if runs else None
    if facts is None:
        return frozenset()
    return frozenset(
        column.name
        for column in facts.columns
        if column.missing is not None
        or column.has_default
        or column.not_null  # a default that filled it may have been dropped since
        or column.identity
        or column.generated
    )


def _unknown(runs: Sequence[RelationChanges]) -> frozenset[str]:
    """Columns that the catalog did not know any more when it was asked: nothing can be said of
    rows from before them."""
    return frozenset(
        column.name
        for run in runs
        if run.facts is not None
        for column in run.relation.columns
        if column.name not in {known.name for known in run.facts.columns}
    )


def _as_type(values: pa.Array, type_: pa.DataType) -> pa.Array:
    return values if values.type.equals(type_) else values.cast(type_)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Rows before netting may hold NULL anywhere: an absent value is NULL."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _chunked(arrays: list[pa.Array], field: pa.Field) -> pa.ChunkedArray:
    return pa.chunked_array(arrays, type=field.type)


def _count(index: Int64s) -> int:
    return int(np.count_nonzero(index >= 0))


def _order(runs: Sequence[RelationChanges]) -> Int64s | slice:
    """What puts the joined changes in commit order; nothing to do for one run."""
    if len(runs) <= 1:
        return slice(None)
    positions = np.concatenate([run.positions for run in runs])
    ordinals = np.concatenate([run.ordinals for run in runs])
    return np.lexsort((ordinals, positions)).astype(np.int64, copy=False)


def _shifted(indexes: list[tuple[Int64s, int]]) -> Int64s:
    """Indexes into each run's rows as indexes into all rows; -1 stays."""
    shifted: list[Int64s] = [np.empty(0, np.int64)]
    start = 0
    for index, count in indexes:
        shifted.append(np.where(index >= 0, index + start, -1))
        start += count
    return np.concatenate(shifted)


def _joined_masks(parts: list[_Part], names: list[str]) -> dict[str, Mask]:
    masks: dict[str, Mask] = {}
    for name in names:
        if any(name in part.absent for part in parts):
            masks[name] = np.concatenate(
                [part.absent.get(name, np.zeros(part.row_count, np.bool_)) for part in parts]
            )
    return masks
