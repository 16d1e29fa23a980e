"""Converts rows for a table to its columns, and refuses a copy in which several rows have the same
key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pgsluice.changes.shared_keys import count_shared_keys
from pgsluice.changes.unique import shared_keys_error
from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, StagedRows, TargetTable
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.sinks.lake.staging import staged_files
from pgsluice.sinks.lake.upkeep import live_rows
from pgsluice.stores.contract import Folder

_READ_ROWS = 2**16


def fitting_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str
) -> Iterator[pa.RecordBatch]:
    """Rows in a table's types, batch by batch.

    Raises:
        TableError: a key column, which is not nullable, is NULL.
    """
    keys = [field.name for field in schema if not field.nullable]

    def fitting(batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in keys:
            if nulls := batch.column(name).null_count:
                raise TableError(
                    f"the key column {name!r} of table {table} is NULL in {nulls} copied row(s)",
                    hint="set `key` in the subscription to columns that are never NULL; then copy "
                    f"the table: {copy_again(table)}",
                    table=table,
                    column=name,
                )
        return batch if batch.schema.equals(schema) else batch.cast(schema)

    return map(fitting, batches)  # which keeps no batch


def altered_schema(
    schema: pa.Schema, added: Sequence[AddedColumn], widened: Sequence[pa.Field]
) -> pa.Schema:
    """A table's columns, some with other types, followed by new ones."""
    types = {field.name: field.type for field in widened}
    fields = [field.with_type(types.get(field.name, field.type)) for field in schema]
    return pa.schema([*fields, *(column.field for column in added)])


def altered_rows(
    snapshot: Snapshot,
    files: Iterable[DataFile],
    schema: pa.Schema,
    added: Iterable[AddedColumn] = (),
) -> Iterator[pa.RecordBatch]:
    """The live rows of files in other columns. Those that a file lacks are NULL; those of ``added``
    have their value in all rows."""
    for batch in live_rows(replace(snapshot, schema=schema), files):
        for column in added:
            place = schema.get_field_index(column.field.name)
            field = schema.field(place)
            values = pa.repeat(column.value.cast(field.type), len(batch))
            batch = batch.set_column(place, field, values)
        yield batch


def refuse_shared_keys(
    folder: Folder,
    table: TargetTable,
    types: pa.Schema,
    staged: Sequence[StagedRows],
    position: Lsn,
    cache_dir: str | None,
) -> None:
    """Check that no two rows of a copy have the same key, if the source does not prove it: read the
    keys back from all staged files.

    Args:
        types: the table's columns in the target's types.
        cache_dir: a folder on a local disk for numbers of keys; None: the temporary files'.

    Raises:
        TableError: some rows have the same key.
    """
    # A target without its key's columns (a column list of inserts only) is only appended to.
    if table.is_key_proved or not table.key or not {*table.key} <= {*types.names}:
        return
    keys = pa.schema([types.field(name) for name in table.key])
    count = count_shared_keys(
        lambda: _keys_of(folder, staged_files(staged), keys),
        sum(part.rows for part in staged),
        None if cache_dir is None else Path(cache_dir),
    )
    if count:
        raise shared_keys_error(count, table.source_key, table.title, position)


def _keys_of(folder: Folder, files: Iterable[DataFile], keys: pa.Schema) -> Iterator[pa.Table]:
    for file in files:
        with file.open(folder) as parquet:
            for batch in parquet.iter_batches(_READ_ROWS, columns=keys.names, use_threads=False):
                yield pa.Table.from_batches([batch]).select(keys.names).cast(keys)
