"""Rows of a copy on their way into a Delta table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pgsluice.errors import TableError


class CopiedRows:
    """The batches of a copy in the table's types, counted.

    Keeps the error that ended them: deltalake passes on only its text.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str) -> None:
        self.batches, self.schema, self.table = batches, schema, table
        self.keys = [i for i, field in enumerate(schema) if not field.nullable]
        self.rows = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from map(self._checked, self.batches)  # which keeps no batch
        except BaseException as error:
            self.error = error
            raise

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += len(batch)
        for index in self.keys:
            if nulls := batch.column(index).null_count:
                raise TableError(
                    f"key column {self.schema.names[index]!r} of {self.table} is NULL in"
                    f" {nulls} row(s) of the copy",
                    hint="choose a key of columns that are never NULL",
                    table=self.table,
                    column=self.schema.names[index],
                )
        return batch if batch.schema.equals(self.schema) else batch.cast(self.schema)
