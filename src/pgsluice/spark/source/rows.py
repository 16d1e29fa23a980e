"""Converts typed changes to a query's rows: change rows of one table, or envelope rows.

A change becomes one row. An UPDATE with an old tuple becomes two: ``update_preimage``, then
``update_postimage``. PostgreSQL does not send unchanged TOAST values. Such a value is taken from
the old tuple if that has it; otherwise the column is NULL and listed in ``_absent``. A TRUNCATE is
a row without values.

No value is replaced silently: a value that does not fit its column is NULL, its column is listed in
``_unfit``, and its text is in ``_unfit_text``. If a column's type changes during a query, an error
names the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from pgsluice.columnar import RelationChanges, variant
from pgsluice.columnar.changes import DELETE, INSERT, TRUNCATE, UPDATE, Int64s, Mask
from pgsluice.columnar.row_pool import RowPool
from pgsluice.errors import TableError
from pgsluice.spark.source.schema import CHANGE_COLUMNS
from pgsluice.wire import ReplicaIdentity

NAMES = pa.list_(pa.field("element", pa.string()))
"""Spark's array<string>."""
MAX_ROWS = 50_000
"""Rows in one Arrow batch: large enough for Spark's reader, small in a worker's memory."""

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(5)


@dataclass(frozen=True, slots=True)
class _Rows:
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

    def slice(self, start: int, stop: int) -> _Rows:
        return _Rows(*(getattr(self, name)[start:stop] for name in self.__slots__))


def _rows(changes: RelationChanges, pool: RowPool) -> _Rows:
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
    return _Rows(change, kind, tuple_index)


@dataclass(frozen=True, slots=True)
class _Values:
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


def _values(changes: RelationChanges, pool: RowPool, column: int, rows: _Rows) -> _Values:
    """One column's values for rows."""
    absent, unfit = np.zeros((2, len(rows)), np.bool_)
    has_tuple = rows.tuple_index >= 0
    if not has_tuple.any():
        nothing = pa.nulls(len(rows), changes.schema.field(column).type)
        return _Values(nothing, absent, unfit)
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
    return _Values(values, absent, unfit, texts)


def table_batches(
    changes: RelationChanges, declared: pa.Schema, key: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """One table's change rows.

    Args:
        changes: changes of the table, or of one of its leaf partitions, with one definition.
        declared: the query's schema. Columns are matched by name: a declared column that is missing
            in the relation is NULL, and other columns of the relation are ignored.
        key: the columns that identify a row; None: those that the changes' relation names.

    Raises:
        TableError: a column's type changed to one that the declared type does not contain.
    """
    pool = RowPool.of(changes)
    column_indexes = {c.name: index for index, c in enumerate(changes.relation.columns)}
    table_columns = declared.names[: len(declared) - len(CHANGE_COLUMNS)]
    key = key_columns(changes) if key is None else key
    for rows in _chunks(_rows(changes, pool)):
        arrays, values = [], {}
        for name in table_columns:
            target = declared.field(name).type
            if name not in column_indexes:
                arrays.append(pa.nulls(len(rows), target))
                continue
            values[name] = _values(changes, pool, column_indexes[name], rows)
            arrays.append(_conform(values[name].array, target, name, changes))
        arrays.extend(_change_columns(changes, rows, key, values))
        yield pa.record_batch(arrays, schema=declared)


def envelope_batches(changes: RelationChanges, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Envelope rows of any table; arguments and errors as for :func:`table_batches`.

    Rows of a leaf partition have the name of the partition root. ``key`` has the columns of the
    replica identity, or of the primary key under REPLICA IDENTITY FULL; without such a key it is
    NULL.
    """
    pool = RowPool.of(changes)
    names = [column.name for column in changes.relation.columns]
    dictionary = variant.Dictionary(names)
    key = key_columns(changes)
    namespace, table = changes.table_name
    for rows in _chunks(_rows(changes, pool)):
        values = {name: _values(changes, pool, index, rows) for index, name in enumerate(names)}
        shown = {name: column.array for name, column in values.items()}
        absent = {name: column.absent for name, column in values.items() if column.absent.any()}
        has_tuple = rows.tuple_index >= 0
        has_key = has_tuple if key else np.zeros(len(rows), np.bool_)
        arrays = [
            _constant(namespace, len(rows)),
            _constant(table, len(rows)),
            variant.encode_objects(
                dictionary, {name: shown[name] for name in key}, absent, has_key
            ),
            variant.encode_objects(dictionary, shown, absent, has_tuple),
            pa.nulls(len(rows), pa.string()),
            pa.nulls(len(rows), pa.binary()),
            *_change_columns(changes, rows, key, values),
        ]
        yield pa.record_batch(arrays, schema=declared)


def key_columns(changes: RelationChanges) -> tuple[str, ...]:
    """The columns that identify a row: those of the replica identity, or of the primary key under
    REPLICA IDENTITY FULL; empty if there are none."""
    names = {column.name for column in changes.relation.columns}
    if changes.relation.replica_identity is ReplicaIdentity.FULL:
        key = changes.facts.primary_key if changes.facts is not None else ()
        return key if set(key) <= names else ()
    return tuple(column.name for column in changes.relation.columns if column.is_key)


def _chunks(rows: _Rows) -> Iterator[_Rows]:
    for start in range(0, len(rows), MAX_ROWS):
        yield rows.slice(start, min(start + MAX_ROWS, len(rows)))


def _change_columns(
    changes: RelationChanges, rows: _Rows, key: Sequence[str], values: Mapping[str, _Values]
) -> list[pa.Array]:
    """The change columns, in the order of CHANGE_COLUMNS."""
    change = rows.change
    timestamps = pa.array(changes.commit_timestamps[change], pa.timestamp("us", "UTC"))
    return [
        pa.array(CHANGE_TYPES, pa.string()).take(pa.array(rows.kind)),
        pa.array(changes.positions[change], pa.int64()),
        timestamps,
        pa.array(changes.ordinals[change], pa.int64()),
        pa.array(changes.xids[change], pa.int64()),
        _same_list(key, len(rows)),
        _name_lists({n: v.absent for n, v in values.items() if v.absent.any()}, len(rows)),
        _name_lists({n: v.unfit for n, v in values.items() if v.unfit.any()}, len(rows)),
        _unfit_texts({n: v for n, v in values.items() if v.unfit.any()}, len(rows)),
    ]


def _same_list(names: Sequence[str], count: int) -> pa.Array:
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


def _unfit_texts(values: Mapping[str, _Values], count: int) -> pa.Array:
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


def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _conform(
    values: pa.Array, target: pa.DataType, name: str, changes: RelationChanges
) -> pa.Array:
    """A column cast to its declared type.

    Raises:
        TableError: the declared type does not contain every value of the column's own type.
    """
    if values.type == target and not pt.is_nested(target):
        return values
    if not _contains(target, values.type):
        raise TableError(
            f'table {changes.table_title}: column "{name}" is now {values.type}, but was {target} '
            "when the query started",
            hint="restart the query, so that it reads the table's columns again",
            table=changes.table_title,
            column=name,
        )
    return values.cast(target)


def _contains(target: pa.DataType, source: pa.DataType) -> bool:
    """Whether the target type contains every value of the source type unchanged."""
    if target == source:
        return True
    if pt.is_signed_integer(target) and pt.is_signed_integer(source):
        return bool(target.bit_width >= source.bit_width)
    if pt.is_decimal(target) and pt.is_decimal(source):
        digits = target.precision - target.scale >= source.precision - source.scale
        return bool(digits and target.scale >= source.scale)
    if pt.is_string(target):
        return bool(pt.is_large_string(source))
    if pt.is_binary(target):
        return bool(pt.is_large_binary(source))
    if pt.is_list(target) and pt.is_list(source):
        return _contains(target.value_type, source.value_type)
    if pt.is_struct(target) and pt.is_struct(source):
        return [f.name for f in target] == [f.name for f in source] and all(
            _contains(a.type, b.type) for a, b in zip(target, source, strict=True)
        )
    return False
