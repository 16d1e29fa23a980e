"""Reads target rows that a MERGE does not return, from the version on which it starts.

A MERGE matches a row by its final key: after a swap of two keys, it would find the wrong row. So
rows with a changed key are read under their key before the batch. And it silently changes all rows
of a key: if nothing proves that keys are unique, the rows are counted first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pgsluice.changes.lineage import find_rows
from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import columns_of_sources, resolve_rekeyed
from pgsluice.changes.unique import UnprovedKeys
from pgsluice.sinks.delta.ruled.merge import quoted

_LONGEST_LIST = 1000
"""The largest number of values in an IN list."""
_ROWS_AT_ONCE = 2**18


def read_and_resolve(handle: DeltaTable, net: NetChanges) -> tuple[NetChanges, int]:
    """The same net changes with rekeyed rows resolved, and the number of rows that the target does
    not have."""
    needed = pa.schema([net.rows.schema.field(name) for name in columns_of_sources(net)])
    return resolve_rekeyed(net, _read(handle, net.source_keys, needed))


def refuse_shared(handle: DeltaTable, unproved: UnprovedKeys, table: str) -> None:
    """Check that no key of a batch has too many rows: a MERGE would change them all, and report it
    only afterwards.

    Raises:
        TableError: rows have the same key.
    """
    keys = unproved.keys
    rows = _read(handle, keys, keys.schema)
    unproved.refuse_shared(find_rows(rows, keys, tuple(keys.schema.names)), table)


def _read(handle: DeltaTable, keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows that have one of these keys."""
    names = tuple(keys.schema.names)
    predicate = _predicate(names[0], keys.column(0))
    reader = pa.RecordBatchReader.from_stream(
        handle.scan(columns=schema.names, predicate=predicate)
    )
    parts = [schema.empty_table()]
    for rows in _tables(reader, schema):
        has_key = find_rows(rows.select(names), keys, names) >= 0
        parts.append(rows.filter(pa.array(has_key)))
    return pa.concat_tables(parts)


def _tables(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches joined to tables of about _ROWS_AT_ONCE rows."""
    held: list[pa.RecordBatch] = []
    for batch in reader:
        # The engine returns text as views, which pyarrow cannot take by index yet.
        held.append(batch.select(schema.names).cast(schema))
        if sum(map(len, held)) >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(held, schema)
            held = []
    yield pa.Table.from_batches(held, schema)


def _predicate(name: str, values: pa.ChunkedArray) -> str | None:
    """A condition by which the engine skips files; None for types whose bounds are not exact or
    that have no simple literals."""
    if pa.types.is_integer(values.type):
        wanted = pc.unique(values)
        if len(wanted) <= _LONGEST_LIST:
            return f"{quoted(name)} IN ({', '.join(map(str, wanted.to_pylist()))})"
        bounds = pc.min_max(wanted).as_py()
        return f"{quoted(name)} BETWEEN {bounds['min']} AND {bounds['max']}"
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        wanted = pc.unique(values)
        if len(wanted) <= _LONGEST_LIST:
            literals = ("'" + text.replace("'", "''") + "'" for text in wanted.to_pylist())
            return f"{quoted(name)} IN ({', '.join(literals)})"
    return None
