"""The rows of a change log: every change of a table, with the change columns.

A log has the table's columns, all nullable, and the change columns, whose names begin with a
prefix. Rows of changes are those of a query of the source (:mod:`.change_rows`). Three kinds of
rows say what the stream does not, so that the table can be rebuilt from the log alone:

===============  ===================================================================================
``snapshot``     A copy begins: what is before it does not count. Its rows follow as ``insert``
                 rows at the same position. Changes between the row before it and a second
                 ``snapshot`` row may be missing.
``add_column``   Rows that exist at this place have these values in the columns that ``absent``
                 does not name (ADD COLUMN ... DEFAULT).
``truncate``     All rows are gone.
===============  ===================================================================================

Rows are in order by position and ordinal, with a preimage before its postimage. The ordinals of
``snapshot`` and ``add_column`` rows are larger than those of any change of the same position, and
rise with each copy.

The values of a row depend on its change alone and never on how changes were divided into batches.
So an unsent value is only taken from the change's own old tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.change_rows import (
    CHANGE_TYPES,
    NAMES,
    ChangeRows,
    RowValues,
    change_columns,
    refuse_names,
    rows_of,
    same_list,
    values_of,
)
from pgsluice.changes.events import as_type, refuse_unfit
from pgsluice.changes.truncates import Place, are_before
from pgsluice.columnar.changes import INSERT, WHOLE_ROW, RelationChanges
from pgsluice.columnar.row_pool import RowPool
from pgsluice.lsn import Lsn
from pgsluice.schema_rules.target import reconcile_target

SNAPSHOT: Final = "snapshot"
ADD_COLUMN: Final = "add_column"
_FIELDS: Final = (
    pa.field("change_type", pa.string()),
    pa.field("commit_version", pa.int64()),
    pa.field("commit_timestamp", pa.timestamp("us", "UTC")),
    pa.field("ordinal", pa.int64()),
    pa.field("xid", pa.int64()),
    pa.field("absent", NAMES),
)
_ORDINALS_OF_A_COPY: Final = 2**40
"""A number larger than the changes of any transaction, and than the versions of a target."""
_TRUNCATE: Final = CHANGE_TYPES.index("truncate")


@dataclass(frozen=True, slots=True)
class LogColumns:
    """The change columns of a log, whose names begin with the prefix."""

    prefix: str

    @property
    def fields(self) -> list[pa.Field]:
        """The change columns that a log has beside the table's, all nullable."""
        return [field.with_name(self.prefix + field.name) for field in _FIELDS]

    @property
    def names(self) -> list[str]:
        """The names of the change columns, with the prefix."""
        return [field.name for field in self.fields]

    def of_table(self, schema: pa.Schema, table: str) -> pa.Schema:
        """The columns of the log of a table with these columns; TableError: one of these has the
        name of a change column."""
        refuse_names(self.names, schema.names, table, "each change")
        return pa.schema([*(field.with_nullable(True) for field in schema), *self.fields])

    def rows(
        self,
        runs: Sequence[RelationChanges],
        schema: pa.Schema,
        added: Mapping[str, tuple[pa.Scalar, Place | None]] = MappingProxyType({}),
    ) -> pa.Table:
        """The rows of changes, in order.

        Args:
            runs: the changes, grouped by relation, in any order.
            schema: the log's columns, in types that can hold the values.
            added: added columns -> the value of older rows, and the first change whose relation has
                the column. Their ``add_column`` row is before these changes.

        Raises:
            TableError: a value does not fit its column, or a column changed its type.
        """
        parts = [self._rows_of(run, schema, added) for run in runs]
        rows = pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()
        positions, ordinals = (rows.column(f"{self.prefix}{name}") for name in _PLACE)
        # The sort is stable: a preimage stays before its postimage.
        order = np.lexsort((ordinals.to_numpy(), positions.to_numpy()))
        rows = rows.take(pa.array(order))
        return rows.filter(pa.array(~self._repeats_truncate(rows)))

    def _rows_of(
        self,
        run: RelationChanges,
        schema: pa.Schema,
        added: Mapping[str, tuple[pa.Scalar, Place | None]],
    ) -> pa.Table:
        refuse_names(self.names, run.schema.names, run.table_title, "each change")
        sent = pa.schema([field for field in run.schema if field.name in schema.names])
        reconcile_target(run.table_title, schema, sent, key=())
        pool = RowPool.of(run)
        rows = rows_of(run, pool)
        places = {name: place for place, name in enumerate(run.schema.names)}
        tuples = rows.tuple_index[rows.tuple_index >= 0]
        values: dict[str, RowValues] = {}
        for field in schema:
            if field.name in self.names:
                continue
            if field.name in places:
                place = places[field.name]
                refuse_unfit(run, field.name, pool.unfit(place, pool.completed(place, tuples)))
                values[field.name] = values_of(run, pool, place, rows)
            else:
                value, first = added.get(field.name, (None, None))
                values[field.name] = _lacking(run, rows, field.type, value, first)
        made = change_columns(run, rows, (), values)
        of_change = {self.prefix + field.name: made[field.name] for field in _FIELDS}
        columns = [
            of_change[field.name]
            if field.name in of_change
            else as_type(values[field.name].array, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def _repeats_truncate(self, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The rows that repeat a TRUNCATE: of each leaf partition that a statement names."""
        kinds = rows.column(f"{self.prefix}change_type")
        is_truncate = np.asarray(pa.compute.equal(kinds, CHANGE_TYPES[_TRUNCATE]))
        same = np.zeros(len(rows), np.bool_)
        places = [rows.column(f"{self.prefix}{name}").to_numpy() for name in _PLACE]
        if len(rows) > 1:
            same[1:] = np.logical_and.reduce([place[1:] == place[:-1] for place in places])
            same[1:] &= is_truncate[1:] & is_truncate[:-1]
        return same

    def copied(
        self, rows: pa.RecordBatch, schema: pa.Schema, position: Lsn, copy_number: int
    ) -> pa.RecordBatch:
        """Rows of a copy, in the table's columns, as inserts at its position, in the log's columns
        (``schema``). They belong to no transaction."""
        values = {name: rows.column(name) for name in rows.schema.names}
        place = int(position), copy_number * _ORDINALS_OF_A_COPY + 1
        return self._without_transaction("insert", schema, place, values, len(rows))

    def copy_begins(self, schema: pa.Schema, position: Lsn, copy_number: int) -> pa.RecordBatch:
        """The ``snapshot`` row of a copy, in the log's columns."""
        place = int(position), copy_number * _ORDINALS_OF_A_COPY
        return self._without_transaction(SNAPSHOT, schema, place, {}, 1)

    def column_added(
        self,
        schema: pa.Schema,
        position: Lsn,
        values: Mapping[str, pa.Scalar],
        *,
        copy_number: int,
        version: int,
    ) -> pa.RecordBatch:
        """The ``add_column`` row, in the log's columns (``schema``), for columns that existing rows
        have a value in.

        Args:
            position: the log's position: all changes from before the columns are in it.
            values: the added columns, with that value.
            version: the version of the target, which rises with each commit.
        """
        ordinal = copy_number * _ORDINALS_OF_A_COPY + _ORDINALS_OF_A_COPY // 2 + version
        absent = [n for n in schema.names if n not in values and n not in self.names]
        arrays = {name: pa.repeat(value, 1) for name, value in values.items()}
        place = int(position), ordinal
        return self._without_transaction(ADD_COLUMN, schema, place, arrays, 1, absent)

    def _without_transaction(
        self,
        kind: str,
        schema: pa.Schema,
        place: Place,
        values: Mapping[str, pa.Array],
        count: int,
        absent: Sequence[str] = (),
    ) -> pa.RecordBatch:
        """Rows of one kind and place that belong to no transaction; columns without values are
        NULL."""
        position, ordinal = (pa.repeat(pa.scalar(number, pa.int64()), count) for number in place)
        change = [
            pa.repeat(pa.scalar(kind, pa.string()), count),
            position,
            pa.nulls(count, pa.timestamp("us", "UTC")),
            ordinal,
            pa.nulls(count, pa.int64()),
            same_list(absent, count),
        ]
        given = {**values, **dict(zip(self.names, change, strict=True))}
        columns = [
            as_type(given[field.name], field.type)
            if field.name in given
            else pa.nulls(count, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


_PLACE = ("commit_version", "ordinal")


def _lacking(
    run: RelationChanges,
    rows: ChangeRows,
    type_: pa.DataType,
    value: pa.Scalar | None,
    first: Place | None,
) -> RowValues:
    """A column that is missing in a run's relation: dropped, or not added yet.

    New rows before ``first``, the first change with the column, have its ``value``; so have whole
    old rows, which have to equal a row of the log. Other new rows have NULL. Updates and deletes by
    a key do not have the column.
    """
    is_new = run.actions[rows.change] == INSERT
    absent = ~is_new & (rows.tuple_index >= 0)
    if value is None or first is None or not value.is_valid:
        return RowValues(pa.nulls(len(rows), type_), absent, np.zeros(0, np.bool_))
    is_before = are_before(run, first)[rows.change]
    is_whole = is_new | (run.old_kinds[rows.change] == WHOLE_ROW)
    has_value = is_before & is_whole & (rows.tuple_index >= 0)
    values = pc.if_else(pa.array(has_value), value.cast(type_), pa.scalar(None, type_))
    return RowValues(values, absent & ~has_value, np.zeros(0, np.bool_))
