"""The rows of changes: one vocabulary for queries of the source and for change logs.

A change becomes one row. An UPDATE with an old tuple becomes two: ``update_preimage``, then
``update_postimage``. PostgreSQL does not send unchanged TOAST values. Such a value is taken from
the old tuple if that has it; otherwise the column is NULL and listed in ``absent``. A TRUNCATE is
a row without values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.columnar.changes import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Int64s,
    Mask,
    RelationChanges,
)
from pgsluice.columnar.row_pool import RowPool
from pgsluice.errors import ParkReason, TableError
from pgsluice.hints import copy_again

NAMES = pa.list_(pa.field("element", pa.string()))
"""Spark's array<string>."""
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(5)


def refuse_names(own: Iterable[str], names: Iterable[str], table: str, what: str) -> None:
    """Refuse a table with a column that has the name of one of ``own``, which pgsluice adds to
    ``what``.

    Raises:
        TableError: there is one.
    """
    taken = {name.casefold() for name in own}
    for name in names:
        if name.casefold() in taken:
            raise TableError(
                f"table {table} has the column {name!r}, but pgsluice adds a column with this "
                f"name to {what}",
                hint="set change_column_prefix in the subscription to another prefix, and restart "
                "`pgsluice run CONFIG`; or rename the column in PostgreSQL; then copy the table: "
                f"{copy_again(table)}",
                table=table,
                column=name,
                reason=ParkReason.COLUMNS,
            )


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """The rows for some changes. Every array has one element for each row.

    Attributes:
        change: the change's index.
        kind: index into CHANGE_TYPES.
        tuple_index: the row of the tuple in the changes' :class:`RowPool`, or -1.
    """

    change: Int64s
    kind: Int64s
    tuple_index: Int64s

    def __len__(self) -> int:
        return len(self.change)

    def slice(self, start: int, stop: int) -> ChangeRows:
        """The rows from ``start`` up to ``stop``, without it."""
        return ChangeRows(*(getattr(self, name)[start:stop] for name in self.__slots__))


def rows_of(changes: RelationChanges, pool: RowPool) -> ChangeRows:
    """The rows for changes, whose tuples are in the pool."""
    actions = changes.actions
    has_old = changes.old_index >= 0
    old = np.where(has_old, changes.old_index + pool.new_rows, -1)
    has_preimage = (actions == UPDATE) & has_old
    change = np.repeat(np.arange(len(changes), dtype=np.int64), 1 + has_preimage)
    kind = np.empty(len(change), np.int64)
    tuple_index = np.full(len(change), -1, np.int64)
    last = np.cumsum(1 + has_preimage) - 1
    for action, code in (
        (INSERT, _INSERT),
        (UPDATE, _POSTIMAGE),
        (DELETE, _DELETE),
        (TRUNCATE, _TRUNCATE),
    ):
        kind[last[actions == action]] = code
    tuple_index[last] = np.where(actions == DELETE, old, changes.new_index)
    kind[last[has_preimage] - 1] = _PREIMAGE
    tuple_index[last[has_preimage] - 1] = old[has_preimage]
    return ChangeRows(change, kind, tuple_index)


@dataclass(frozen=True, slots=True)
class RowValues:
    """One column of some rows.

    Attributes:
        array: the values; null where a value is NULL, absent or unfit.
        absent: the rows without a value.
        unfit: the rows whose value does not fit the column's type.
        texts: PostgreSQL's text of each unfit value.
    """

    array: pa.Array
    absent: Mask
    unfit: Mask
    texts: Sequence[str] = ()


def values_of(changes: RelationChanges, pool: RowPool, column: int, rows: ChangeRows) -> RowValues:
    """The values of one column, by its place, for rows of changes."""
    absent, unfit = np.zeros((2, len(rows)), np.bool_)
    has_tuple = rows.tuple_index >= 0
    if not has_tuple.any():
        nothing = pa.nulls(len(rows), changes.schema.field(column).type)
        return RowValues(nothing, absent, unfit)
    tuples = pool.completed(column, rows.tuple_index[has_tuple])
    texts: Sequence[str] = ()
    if (mask := pool.unfit(column, tuples)) is not None:
        unfit[has_tuple] = mask
        texts = pool.unfit_text(column, tuples[mask]).to_pylist()
    if (mask := pool.absent(column, tuples)) is not None:
        absent[has_tuple] = mask
    values = pool.values(column, tuples)
    if not has_tuple.all():
        values = values.take(pa.array(np.cumsum(has_tuple) - 1, mask=~has_tuple))
    return RowValues(values, absent, unfit, texts)


def change_columns(
    changes: RelationChanges,
    rows: ChangeRows,
    key: Sequence[str],
    values: Mapping[str, RowValues],
) -> dict[str, pa.Array]:
    """The change columns of rows, by their names without a prefix, in the order of a query's
    columns; ``key`` identifies a row, and ``values`` are the table's columns."""
    change = rows.change
    timestamps = pa.array(changes.commit_timestamps[change], pa.timestamp("us", "UTC"))
    return {
        "change_type": pa.array(CHANGE_TYPES, pa.string()).take(pa.array(rows.kind)),
        "commit_version": pa.array(changes.positions[change], pa.int64()),
        "commit_timestamp": timestamps,
        "ordinal": pa.array(changes.ordinals[change], pa.int64()),
        "xid": pa.array(changes.xids[change], pa.int64()),
        "key": same_list(key, len(rows)),
        "absent": _name_lists(
            {n: v.absent for n, v in values.items() if v.absent.any()}, len(rows)
        ),
        "unfit": _name_lists({n: v.unfit for n, v in values.items() if v.unfit.any()}, len(rows)),
        "unfit_text": _unfit_texts({n: v for n, v in values.items() if v.unfit.any()}, len(rows)),
    }


def same_list(names: Sequence[str], count: int) -> pa.Array:
    """The same names for each row, as array<string>."""
    return pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1) * len(names), pa.int32()),
        pa.array([*names] * count, pa.string()),
        type=NAMES,
    )


def _name_lists(masks: Mapping[str, Mask], count: int) -> pa.Array:
    """For each row, the names whose mask is true in it, as array<string>."""
    offsets, _, columns = _marked(masks, count)
    values = pa.array(list(masks), pa.string()).take(pa.array(columns))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=NAMES)


def _unfit_texts(values: Mapping[str, RowValues], count: int) -> pa.Array:
    """For each row, the text of its unfit values by column, as map<string, string>."""
    offsets, rows, columns = _marked({name: column.unfit for name, column in values.items()}, count)
    texts = [
        dict(zip(np.flatnonzero(column.unfit).tolist(), column.texts, strict=True))
        for column in values.values()
    ]
    places = zip(rows.tolist(), columns.tolist(), strict=True)
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(list(values), pa.string()).take(pa.array(columns)),
        pa.array([texts[column][row] for row, column in places], pa.string()),
    )


def _marked(masks: Mapping[str, Mask], count: int) -> tuple[Int64s, Int64s, Int64s]:
    """The places where masks over ``count`` rows are true: offsets by row, rows, and columns."""
    offsets, nothing = np.zeros(count + 1, np.int64), np.zeros(0, np.int64)
    if not masks:
        return offsets, nothing, nothing
    matrix = np.stack(list(masks.values()), axis=1)
    np.cumsum(matrix.sum(axis=1), out=offsets[1:])
    rows, columns = np.nonzero(matrix)
    return offsets, rows, columns
