"""Finds the rows of a table that a copy does not have, to keep them as deleted rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.deleted_rows import TIME
from pgsluice.sinks.lake.key_scan import KeyScan
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.sinks.lake.upkeep import live_rows

_ROWS = 500_000
_BYTES = 64 * 2**20
"""How many rows are looked for at a time: each time, the key columns of the copy are read."""


def gone_rows(
    snapshot: Snapshot,
    copied: Sequence[DataFile],
    schema: pa.Schema,
    key: Sequence[str],
    deleted_column: str,
) -> Iterator[pa.RecordBatch]:
    """The rows of a version whose keys a copy does not have, deleted now unless they were before.

    Args:
        copied: the files of the copy.
        schema: the columns of the rows. A column is NULL if the table lacks it, or has values of
            another type.
        key: the key's columns, which have the same types in the table and in the copy.
    """
    scan = KeyScan(snapshot.folder, pa.schema([schema.field(name) for name in key]))
    now = pa.scalar(datetime.now(UTC), TIME)
    for rows in _chunks(live_rows(snapshot, snapshot.files.values())):
        is_copied = np.zeros(len(rows), np.bool_)
        for _, hits in scan.find(copied, rows.select(key)):
            is_copied[hits.wanted] = True
        gone = rows.filter(pa.array(~is_copied))
        columns = [_as(gone, field) for field in schema]
        place = schema.get_field_index(deleted_column)
        columns[place] = pc.coalesce(columns[place], now)
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _as(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name in rows.schema.names:
        try:
            return rows.column(field.name).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    return pa.chunked_array([pa.nulls(len(rows), field.type)])
