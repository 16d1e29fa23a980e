"""The target's rows that rows with a changed key were, read under their key before the batch.

A MERGE matches a row by its final key: after a swap of two keys, it would find the wrong row.
So these rows are read first, from the version that the MERGE starts from.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import columns_of_sources, resolve_rekeyed
from pgsluice.sinks.delta.merge import quoted

_LONGEST_LIST = 1000
"""Values in an IN list, at most."""


def read_and_resolve(handle: DeltaTable, net: NetChanges) -> tuple[NetChanges, int]:
    """The same net changes without rekeyed rows, and how many rows the target lacks."""
    needed = pa.schema([net.rows.schema.field(name) for name in columns_of_sources(net)])
    return resolve_rekeyed(net, _read(handle, net.source_keys, needed))


def _read(handle: DeltaTable, keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows whose first key column has one of these keys' values: all sources, and others."""
    first = keys.schema.names[0]
    wanted = pc.unique(keys.column(0))
    reader = pa.RecordBatchReader.from_stream(
        handle.scan(columns=schema.names, predicate=_predicate(first, wanted))
    )
    parts = []
    for batch in reader:
        # The engine returns text as views, which pyarrow cannot take by index yet.
        rows = batch.select(schema.names).cast(schema)
        parts.append(rows.filter(pc.is_in(rows.column(first), value_set=wanted)))
    return pa.Table.from_batches(parts, schema=schema)


def _predicate(name: str, wanted: pa.Array) -> str | None:
    """A condition by which the engine skips files; None for types without simple literals."""
    if pa.types.is_integer(wanted.type):
        if len(wanted) <= _LONGEST_LIST:
            return f"{quoted(name)} IN ({', '.join(map(str, wanted.to_pylist()))})"
        bounds = pc.min_max(wanted).as_py()
        return f"{quoted(name)} BETWEEN {bounds['min']} AND {bounds['max']}"
    if len(wanted) <= _LONGEST_LIST and (
        pa.types.is_string(wanted.type) or pa.types.is_large_string(wanted.type)
    ):
        literals = ("'" + text.replace("'", "''") + "'" for text in wanted.to_pylist())
        return f"{quoted(name)} IN ({', '.join(literals)})"
    return None
