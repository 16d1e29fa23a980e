"""Typed changes as the rows that a query sees: change rows of one table, or envelope rows.

A change becomes one row. An UPDATE that carries its old tuple becomes two: ``update_preimage``,
then ``update_postimage``. PostgreSQL leaves out large values that did not change. Such a value
comes from the old tuple if that has it; otherwise the column is NULL and named in ``_absent``.
A TRUNCATE is a row without values.

No value is replaced silently: a value that its column cannot hold, or a type that changed under
a running query, is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from pgsluice.columnar import RelationChanges
from pgsluice.columnar.changes import DELETE, INSERT, TRUNCATE, UPDATE, Int64s, Mask
from pgsluice.columnar.row_pool import RowPool
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.spark import variant
from pgsluice.spark.schema import CHANGE_COLUMNS
from pgsluice.wire import ReplicaIdentity

MAX_ROWS = 50_000
"""Rows of one Arrow batch: large enough for Spark's reader, small in a worker's memory."""

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(5)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that a run of changes becomes. Every array has one element per row.

    Attributes:
        change: the change's index.
        kind: index into CHANGE_TYPES.
        tuple_index: row of the tuple in the changes' :class:`RowPool`, or -1.
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


def _values(
    changes: RelationChanges, pool: RowPool, column: int, rows: _Rows
) -> tuple[pa.Array, Mask]:
    """One column's values for rows, and a mask of the rows where it is absent.

    Raises:
        TableError: one of the values does not fit the column's type.
    """
    absent = np.zeros(len(rows), np.bool_)
    has_tuple = rows.tuple_index >= 0
    if not has_tuple.any():
        return pa.nulls(len(rows), changes.schema.field(column).type), absent
    tuples = pool.completed(column, rows.tuple_index[has_tuple])
    if (unfit := pool.unfit(column, tuples)) is not None:
        change = int(rows.change[has_tuple][np.argmax(unfit)])
        raise _unfit(changes, column, Lsn(int(changes.positions[change])))
    if (mask := pool.absent(column, tuples)) is not None:
        absent[has_tuple] = mask
    values = pool.values(column, tuples)
    if has_tuple.all():
        return values, absent
    return values.take(pa.array(np.cumsum(has_tuple) - 1, mask=~has_tuple)), absent


def _unfit(changes: RelationChanges, column: int, position: Lsn) -> TableError:
    name = changes.relation.columns[column].name
    return TableError(
        f'table {_title(changes)}, column "{name}": a value in the transaction that ends at '
        f"{position} does not fit the type {changes.schema.field(column).type}",
        hint="correct the value at the source and start the query after that position, or "
        "read another table",
        table=_title(changes),
        column=name,
        lsn=position,
    )


def table_batches(changes: RelationChanges, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One table's change rows.

    Args:
        changes: a run of the table's changes, or of one of its leaves.
        declared: the query's schema. Columns are matched by name: a declared column that the
            relation lacks is NULL, and a column that is not declared is left out.

    Raises:
        TableError: a column's type changed to one that the declared type does not contain, or
            a value does not fit.
    """
    pool = RowPool.of(changes)
    column_indexes = {c.name: index for index, c in enumerate(changes.relation.columns)}
    table_columns = declared.names[: len(declared) - len(CHANGE_COLUMNS)]
    for rows in _chunks(_rows(changes, pool)):
        arrays, absent = [], {}
        for name in table_columns:
            target = declared.field(name).type
            if name not in column_indexes:
                arrays.append(pa.nulls(len(rows), target))
                continue
            values, mask = _values(changes, pool, column_indexes[name], rows)
            if mask.any():
                absent[name] = mask
            arrays.append(_conform(values, target, name, changes))
        arrays.extend(_change_columns(changes, rows, absent))
        yield pa.record_batch(arrays, schema=declared)


def envelope_batches(changes: RelationChanges, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Envelope rows of any table; arguments and errors as for :func:`table_batches`.

    Rows of a leaf carry the name of its partitioned root. ``key`` holds the columns of the
    replica identity, or of the primary key under REPLICA IDENTITY FULL; without such a key it is
    NULL.
    """
    pool = RowPool.of(changes)
    names = [column.name for column in changes.relation.columns]
    dictionary = variant.Dictionary(names)
    key = _key_columns(changes)
    namespace, table = target_name(changes)
    for rows in _chunks(_rows(changes, pool)):
        values, absent = {}, {}
        for index, name in enumerate(names):
            values[name], mask = _values(changes, pool, index, rows)
            if mask.any():
                absent[name] = mask
        has_tuple = rows.tuple_index >= 0
        has_key = has_tuple if key else np.zeros(len(rows), np.bool_)
        arrays = [
            _constant(namespace, len(rows)),
            _constant(table, len(rows)),
            variant.encode_objects(
                dictionary, {name: values[name] for name in key}, absent, has_key
            ),
            variant.encode_objects(dictionary, values, absent, has_tuple),
            pa.nulls(len(rows), pa.string()),
            pa.nulls(len(rows), pa.binary()),
            *_change_columns(changes, rows, absent),
        ]
        yield pa.record_batch(arrays, schema=declared)


def target_name(changes: RelationChanges) -> tuple[str, str]:
    """Schema and table that the rows name: the relation's, or for a leaf its root's."""
    facts = changes.facts
    if facts is not None and facts.root_oid != facts.oid:
        return facts.root_namespace, facts.root_name
    return changes.relation.schema, changes.relation.name


def _title(changes: RelationChanges) -> str:
    return ".".join(target_name(changes))


def _key_columns(changes: RelationChanges) -> tuple[str, ...]:
    names = {column.name for column in changes.relation.columns}
    if changes.relation.replica_identity is ReplicaIdentity.FULL:
        key = changes.facts.primary_key if changes.facts is not None else ()
        return key if set(key) <= names else ()
    return tuple(column.name for column in changes.relation.columns if column.is_key)


def _chunks(rows: _Rows) -> Iterator[_Rows]:
    for start in range(0, len(rows), MAX_ROWS):
        yield rows.slice(start, min(start + MAX_ROWS, len(rows)))


def _change_columns(
    changes: RelationChanges, rows: _Rows, absent: Mapping[str, Mask]
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
        _name_lists(absent, len(rows)),
    ]


def _name_lists(masks: Mapping[str, Mask], count: int) -> pa.Array:
    """For each row, the names whose mask is true in it, as array<string>."""
    offsets = np.zeros(count + 1, np.int32)
    values = pa.array([], pa.string())
    if masks:
        matrix = np.stack(list(masks.values()), axis=1)
        np.cumsum(matrix.sum(axis=1), out=offsets[1:])
        values = pa.array(list(masks), pa.string()).take(pa.array(np.nonzero(matrix)[1]))
    kind = pa.list_(pa.field("element", pa.string()))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)


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
            f'table {_title(changes)}: column "{name}" is now {values.type}, but was {target} when '
            "the query started",
            hint="restart the query, so that it reads the table's columns again",
            table=_title(changes),
            column=name,
        )
    return values.cast(target)


def _contains(target: pa.DataType, source: pa.DataType) -> bool:
    """Whether the target type holds every value of the source type unchanged."""
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
