"""Absent values of rows whose key changed, read under their key before the batch.

A MERGE matches a row by its final key and would take absent values from whatever row has that
key in the target: after a swap of two keys, from the wrong row. So these values are read
first, from the version that the MERGE starts from.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pgsluice.changes.net import NetChanges
from pgsluice.sinks.contract import lacks_source_row
from pgsluice.sinks.delta.merge import quoted

_LONGEST_LIST = 1000
"""Values in an IN list, at most."""


def fill_rekeyed(handle: DeltaTable, net: NetChanges, table: str) -> NetChanges:
    """The same net changes without rekeyed rows: ``rows`` has their values.

    Raises:
        TableError: the target lacks a row that values have to come from.
    """
    if not len(net.rekeyed):
        return net
    wanted = [name for name, mask in net.absent.items() if mask[net.rekeyed].any()]
    needed = pa.schema([net.rows.schema.field(name) for name in (*net.key, *wanted)])
    sources = _read(handle, net.source_keys, needed)
    row_of_key = {key: i for i, key in enumerate(_tuples(sources.select(net.key)))}
    source_rows = np.array([row_of_key.get(key, -1) for key in _tuples(net.source_keys)])
    if (source_rows < 0).any():
        raise lacks_source_row(table)
    rows, absent = net.rows, dict(net.absent)
    for name in wanted:
        lacks_value = absent[name][net.rekeyed]
        index = np.arange(len(rows))
        index[net.rekeyed[lacks_value]] = len(rows) + source_rows[lacks_value]
        own = rows.column(name)
        both = pa.chunked_array([*own.chunks, *sources.column(name).chunks], type=own.type)
        column_index = rows.schema.get_field_index(name)
        field = rows.schema.field(column_index)
        rows = rows.set_column(column_index, field, both.take(pa.array(index)))
        mask = absent.pop(name).copy()
        mask[net.rekeyed] = False
        if mask.any():
            absent[name] = mask
    nothing = np.empty(0, np.int64)
    return replace(
        net, rows=rows, absent=absent, rekeyed=nothing, source_keys=net.source_keys.slice(0, 0)
    )


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


def _tuples(keys: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
