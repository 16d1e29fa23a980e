"""Joins the changes of one table into one sequence, with one order and one schema.

Decoding returns a table's changes in groups (runs): one for each definition of the relation and,
for a partitioned table, for each leaf partition. This module joins them to one sequence with the
target's columns:

- A column that is missing in a run's relation was added later, or dropped before (contracts: schema
  changes). In rows before the first change with the column, it has the value of older rows at the
  source; in later rows, NULL.
- A value that is missing in a new tuple is taken from the old tuple of the same change, if that has
  it: key columns always, every column under REPLICA IDENTITY FULL.
- A value that does not fit its column is an error of the table, and so is a NULL or missing key
  value. No value is ever guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.truncates import Place, are_before, truncated_leaves
from pgsluice.columnar.changes import (
    DELETE,
    UPDATE,
    WHOLE_ROW,
    Bytes,
    Int64s,
    Mask,
    RelationChanges,
)
from pgsluice.columnar.row_pool import RowPool
from pgsluice.errors import ParkReason, Remedy, TableError
from pgsluice.hints import COPIES_AGAIN, copy_again, keep_as_text
from pgsluice.schema_rules.target import reconcile_target
from pgsluice.sql import quote_title


@dataclass(frozen=True, slots=True)
class Events:
    """The changes of one table in commit order; n changes.

    Attributes:
        table: the title of the table, for messages.
        actions: n.
        positions: n.
        times: n; the time of the commit, in microseconds since 1970.
        rows: all new tuples, in the target's columns.
        row_index: n; the row in ``rows``, or -1 (DELETE, TRUNCATE).
        absent: column name -> mask over ``rows``, true where no tuple has the value.
        old_keys: the columns that identify a row, of all old tuples.
        old_key_index: n; row in ``old_keys``, or -1.
    """

    table: str
    actions: Bytes
    positions: Int64s
    times: Int64s
    rows: pa.Table
    row_index: Int64s
    absent: Mapping[str, Mask]
    old_keys: pa.Table
    old_key_index: Int64s

    def after(self, first: int) -> Events:
        """The changes from index ``first`` on; ``rows`` does not change."""
        return self.between(first, len(self.actions))

    def between(self, first: int, end: int) -> Events:
        """The changes from index ``first`` up to ``end``, without it; ``rows`` does not change."""
        return replace(
            self,
            actions=self.actions[first:end],
            positions=self.positions[first:end],
            times=self.times[first:end],
            row_index=self.row_index[first:end],
            old_key_index=self.old_key_index[first:end],
        )


def join_runs(
    runs: Sequence[RelationChanges],
    schema: pa.Schema,
    key: tuple[str, ...],
    missing: Mapping[str, pa.Scalar],
    begins: Mapping[str, Place] | None,
    truncates: Collection[Place],
) -> Events:
    """Join the changes of one table, in (position, ordinal) order.

    Args:
        runs: in any order; if the table has no key and they have updates or deletes, all with the
            same columns.
        missing, begins, truncates: as for :func:`pgsluice.changes.net.net_changes`.

    Raises:
        TableError: a value does not fit its column, a key is NULL or missing, a column changed
            its type, or the table cannot take an action.
    """
    if begins is None:
        begins = first_places(runs, missing)
    added = {name: (value, begins.get(name)) for name, value in missing.items()}
    for run in runs:
        _check_truncates(run, truncates)
    has_old = any((run.old_index >= 0).any() for run in runs)
    identity = key or (whole_columns(runs[0], schema) if has_old else ())
    parts = [_Part.of(run, schema, key, identity, added) for run in runs]
    rows = pa.Table.from_arrays(
        [
            pa.chunked_array([part.columns[i] for part in parts], f.type)
            for i, f in enumerate(schema)
        ],
        schema=pa.schema([field.with_nullable(True) for field in schema]),  # absent ones are NULL
    )
    key_fields = [schema.field(name) for name in identity]
    old_keys = pa.Table.from_arrays(
        [
            pa.chunked_array([part.old_keys[i] for part in parts], f.type)
            for i, f in enumerate(key_fields)
        ],
        schema=pa.schema(key_fields),
    )
    order = _order(runs)
    pairs = list(zip(runs, parts, strict=True))
    return Events(
        table=runs[0].title if runs else "the table",
        actions=np.concatenate([np.empty(0, np.uint8), *(run.actions for run in runs)])[order],
        positions=_of_changes([run.positions for run in runs])[order],
        times=_of_changes([run.commit_timestamps for run in runs])[order],
        rows=rows,
        row_index=_shifted([(run.new_index, part.row_count) for run, part in pairs])[order],
        absent=_joined_masks(parts, [field.name for field in schema]),
        old_keys=old_keys,
        old_key_index=_shifted([(run.old_index, part.old_count) for run, part in pairs])[order],
    )


def first_places(runs: Iterable[RelationChanges], columns: Iterable[str]) -> dict[str, Place]:
    """The first change whose relation has each added column, for columns that some relation has;
    the tuples of the changes are not needed."""
    wanted = [*columns]
    first: dict[str, Place] = {}
    for run in runs:
        if len(run):
            place = int(run.positions[0]), int(run.ordinals[0])
            for name in wanted:
                if name in run.schema.names:
                    first[name] = min(place, first.get(name, place))
    return first


@dataclass(frozen=True, slots=True)
class _Part:
    """The changes of one relation, converted to the target's columns."""

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
        identity: tuple[str, ...],
        added: Mapping[str, tuple[pa.Scalar, Place | None]],
    ) -> _Part:
        column_indexes = {name: i for i, name in enumerate(run.schema.names)}
        refuse_unidentified(run, key)
        reconcile_target(run.table_title, schema, run.schema, key=key)
        pool, old_count = RowPool.of(run), _count(run.old_index)
        columns: list[pa.Array] = []
        absent: dict[str, Mask] = {}
        for field in schema:
            column_index = column_indexes.get(field.name)
            if column_index is None:
                value, first = added.get(field.name, (None, None))
                columns.append(_lacking(run, field.type, value, first))
                continue
            values, mask = _filled(run, pool, column_index)
            if field.name in key:
                _check_key(run, field.name, values, mask)
            elif mask is not None:
                absent[field.name] = mask
            columns.append(as_type(values, field.type))
        old_keys = [
            _old_values(run, column_indexes[name], schema.field(name), is_key=bool(key))
            for name in identity
        ]
        return cls(columns, pool.new_rows, absent, old_keys, old_count)


def _check_truncates(run: RelationChanges, truncates: Collection[Place]) -> None:
    """Refuse a TRUNCATE of only some leaf partitions: it is unknown which rows of the target they
    had."""
    if not truncated_leaves([run]).keys() <= set(truncates):
        raise TableError(
            f"partition {run.title} was truncated: the server does not send which rows it had",
            hint=COPIES_AGAIN,
            table=run.title,
            remedy=Remedy.COPY,
        )


def refuse_unidentified(run: RelationChanges, key: tuple[str, ...]) -> None:
    """Refuse updates and deletes whose old tuples do not identify a row; ``key`` is the table's,
    empty for a table without one.

    Raises:
        TableError: there is one. While another replica identity was in force, tuples lacked the
            key: a copy helps.
    """
    table = run.title
    changed = (run.actions == UPDATE) | (run.actions == DELETE)
    if not changed.any():
        return
    if not key:
        if (run.old_kinds[changed] == WHOLE_ROW).all():
            return
        raise TableError(
            f"table {table} has no key, and its updates and deletes do not carry the whole old row",
            hint=f"run: ALTER TABLE {quote_title(table)} REPLICA IDENTITY FULL; or give the table a"
            " primary key; or set `key` in the subscription to NOT NULL columns that have a unique"
            f" index; then copy the table: {copy_again(run.table_title)}",
            table=table,
            reason=ParkReason.KEY,
        )
    carried = {column.name for column in run.relation.columns if column.is_key}
    outside = [name for name in key if name not in carried]
    if outside:
        raise TableError(
            f"the key column {', '.join(map(repr, outside))} of table {table} is not part of the"
            " table's replica identity, so updates do not have its old value",
            hint="set `key` in the subscription to the columns of the replica identity, or run:"
            f" ALTER TABLE {quote_title(table)} REPLICA IDENTITY FULL; then copy the table:"
            f" {copy_again(run.table_title)}",
            table=table,
            remedy=Remedy.COPY,  # for a while only: the table's facts have the key
        )
    if (run.old_index[run.actions == DELETE] < 0).any():
        raise TableError(f"a DELETE of {table} has no old tuple", table=table)


def refuse_unfit(run: RelationChanges, column: str, unfit: Mask | None) -> None:
    """Refuse values of a column that do not fit it; ``unfit`` marks them, None: all fit.

    Raises:
        TableError: there is one.
    """
    count = 0 if unfit is None else int(np.count_nonzero(unfit))
    if count:
        table = run.title
        raise TableError(
            f"{count} value(s) of column {column!r} of table {table} do not fit the column's type "
            "in the target",
            hint=keep_as_text(run.table_title, [column]),
            table=table,
            column=column,
            count=count,
        )


def _check_key(run: RelationChanges, column: str, values: pa.Array, absent: Mask | None) -> None:
    table = run.title
    missing = 0 if absent is None else int(np.count_nonzero(absent))
    if count := missing or values.null_count:
        state = "not sent" if missing else "NULL"
        raise TableError(
            f"the key column {column!r} of table {table} is {state} in {count} changed row(s)",
            hint="set `key` in the subscription to columns that are never NULL and part of the "
            f"replica identity; then copy the table: {copy_again(run.table_title)}",
            table=table,
            column=column,
            count=count,
        )


def _filled(run: RelationChanges, pool: RowPool, column_index: int) -> tuple[pa.Array, Mask | None]:
    """A column of the new tuples, completed from their old tuples, and a mask of values that are
    still absent."""
    rows = np.arange(pool.new_rows)
    if column_index in run.new.absent:
        rows = pool.completed(column_index, rows)
    refuse_unfit(run, run.schema.field(column_index).name, pool.unfit(column_index, rows))
    return pool.values(column_index, rows), pool.absent(column_index, rows)


def whole_columns(run: RelationChanges, schema: pa.Schema) -> tuple[str, ...]:
    """The columns by which the rows of a relation are compared, in a table without a key."""
    sent = {*run.schema.names}
    return tuple(name for name in schema.names if name in sent)


def _old_values(
    run: RelationChanges, column_index: int, field: pa.Field, *, is_key: bool
) -> pa.Array:
    """A column of the old tuples, by which rows are found."""
    values, absent = run.old.columns[column_index], run.old.absent.get(column_index)
    refuse_unfit(run, field.name, run.old.unfit.get(column_index))
    if is_key:
        _check_key(run, field.name, values, absent)
    elif absent is not None and absent.any():
        raise TableError(
            f"the server did not send column {field.name!r} of {run.title} with the old row of an "
            "update or delete",
            hint=COPIES_AGAIN,
            table=run.title,
            column=field.name,
            remedy=Remedy.COPY,
        )
    return as_type(values, field.type)


def _lacking(
    run: RelationChanges, type_: pa.DataType, value: pa.Scalar | None, first: Place | None
) -> pa.Array:
    """A column that is missing in a run's relation: ``value`` in new rows before ``first``, the
    first change with the column, and NULL in later ones."""
    count = _count(run.new_index)
    if value is None or first is None or not value.is_valid:
        return pa.nulls(count, type_)
    is_before = are_before(run, first)[run.new_index >= 0]
    return pc.if_else(pa.array(is_before), value.cast(type_), pa.scalar(None, type_))


def as_type(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values in another Arrow type, which can hold all of them."""
    return values if values.type.equals(type_) else values.cast(type_)


def _count(index: Int64s) -> int:
    return int(np.count_nonzero(index >= 0))


def _order(runs: Sequence[RelationChanges]) -> Int64s | slice:
    """The index that sorts the joined changes into commit order; a single run is already sorted."""
    if len(runs) <= 1:
        return slice(None)
    positions = np.concatenate([run.positions for run in runs])
    ordinals = np.concatenate([run.ordinals for run in runs])
    return np.lexsort((ordinals, positions)).astype(np.int64, copy=False)


def _of_changes(each: Sequence[Int64s]) -> Int64s:
    """Numbers of the changes of all runs, in the runs' order; a single array is not copied."""
    return each[0] if len(each) == 1 else np.concatenate([np.empty(0, np.int64), *each])


def _shifted(indexes: list[tuple[Int64s, int]]) -> Int64s:
    """Convert indexes into each run's rows to indexes into all rows; -1 stays -1."""
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
