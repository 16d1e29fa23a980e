"""Converts typed changes to a query's rows: change rows of one table, or envelope rows.

:mod:`pgsluice.changes.change_rows` makes rows of changes. No value is replaced silently: a value
that does not fit its column is NULL, its column is listed in ``_unfit``, and its text is in
``_unfit_text``. If a column's type changes during a query, an error names the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from pgsluice.changes.change_rows import ChangeRows, change_columns, rows_of, values_of
from pgsluice.columnar import RelationChanges, variant
from pgsluice.columnar.row_pool import RowPool
from pgsluice.errors import TableError
from pgsluice.schema_rules.types import contains
from pgsluice.spark.source.schema import CHANGE_COLUMNS
from pgsluice.wire import ReplicaIdentity

MAX_ROWS = 50_000
"""Rows in one Arrow batch: large enough for Spark's reader, small in a worker's memory."""


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
    for rows in _chunks(rows_of(changes, pool)):
        arrays, values = [], {}
        for name in table_columns:
            target = declared.field(name).type
            if name not in column_indexes:
                arrays.append(pa.nulls(len(rows), target))
                continue
            values[name] = values_of(changes, pool, column_indexes[name], rows)
            arrays.append(_conform(values[name].array, target, name, changes))
        arrays.extend(change_columns(changes, rows, key, values).values())
        yield pa.record_batch(arrays, schema=declared)


def envelope_batches(changes: RelationChanges, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Envelope rows of any table; arguments and errors as for :func:`table_batches`.

    Rows of a leaf partition have the name of the partition root. ``key`` has the columns of the
    replica identity, or of the primary key under REPLICA IDENTITY FULL; without such a key it is
    NULL.
    """
    pool = RowPool.of(changes)
    names = [column.name for column in changes.relation.columns]
    key = key_columns(changes)
    namespace, table = changes.table_name
    for rows in _chunks(rows_of(changes, pool)):
        values = {name: values_of(changes, pool, index, rows) for index, name in enumerate(names)}
        shown = {name: column.array for name, column in values.items()}
        absent = {name: column.absent for name, column in values.items() if column.absent.any()}
        has_tuple = rows.tuple_index >= 0
        has_key = has_tuple if key else np.zeros(len(rows), np.bool_)
        arrays = [
            *(pa.repeat(pa.scalar(name, pa.string()), len(rows)) for name in (namespace, table)),
            variant.encode_objects(names, {name: shown[name] for name in key}, absent, has_key),
            variant.encode_objects(names, shown, absent, has_tuple),
            pa.nulls(len(rows), pa.string()),
            pa.nulls(len(rows), pa.binary()),
            *change_columns(changes, rows, key, values).values(),
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


def _chunks(rows: ChangeRows) -> Iterator[ChangeRows]:
    for start in range(0, len(rows), MAX_ROWS):
        yield rows.slice(start, min(start + MAX_ROWS, len(rows)))


def _conform(
    values: pa.Array, target: pa.DataType, name: str, changes: RelationChanges
) -> pa.Array:
    """A column cast to its declared type.

    Raises:
        TableError: the declared type does not contain every value of the column's own type.
    """
    if values.type == target and not pt.is_nested(target):
        return values
    if not contains(target, values.type):
        raise TableError(
            f'table {changes.table_title}: column "{name}" is now {values.type}, but was {target} '
            "when the query started",
            hint="restart the query, so that it reads the table's columns again",
            table=changes.table_title,
            column=name,
        )
    return values.cast(target)
