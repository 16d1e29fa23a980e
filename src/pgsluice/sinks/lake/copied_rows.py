"""Converts rows for a table to its columns, and counts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pgsluice.errors import TableError
from pgsluice.sinks.contract import AddedColumn


class CopiedRows:
    """The batches of a copy in the table's types, counted."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str) -> None:
        self.batches, self.schema, self.table = batches, schema, table
        self.keys = [i for i, field in enumerate(schema) if not field.nullable]
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return map(self._checked, self.batches)  # which keeps no batch

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += len(batch)
        for index in self.keys:
            if nulls := batch.column(index).null_count:
                raise TableError(
                    f"the key column {self.schema.names[index]!r} of table {self.table} is NULL in"
                    f" {nulls} copied row(s)",
                    hint="set `key` in the subscription to columns that are never NULL",
                    table=self.table,
                    column=self.schema.names[index],
                )
        return batch if batch.schema.equals(self.schema) else batch.cast(self.schema)


def altered_schema(
    schema: pa.Schema, added: Sequence[AddedColumn], widened: Sequence[pa.Field]
) -> pa.Schema:
    """A table's columns, some with other types, followed by new ones."""
    types = {field.name: field.type for field in widened}
    fields = [field.with_type(types.get(field.name, field.type)) for field in schema]
    return pa.schema([*fields, *(column.field for column in added)])


def altered_batch(
    batch: pa.RecordBatch, schema: pa.Schema, added: Sequence[AddedColumn]
) -> pa.RecordBatch:
    """Rows with other columns.

    Args:
        schema: the new columns of the rows.
        added: those of them that the table does not have yet.
    """
    values = {column.field.name: column.value for column in added}
    columns = [
        pa.repeat(values[field.name].cast(field.type), len(batch))
        if field.name in values
        else batch.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
