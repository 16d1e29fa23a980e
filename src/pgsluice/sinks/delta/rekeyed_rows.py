"""Values of rows whose key changed, read under the key that they had before.

A MERGE matches a row by its final key and would take absent values from whatever row has that
key in the target: after a swap of two keys, the other row's. So such values are read first,
from the same version that the MERGE then starts from.
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

_FEW = 1000


def fill_rekeyed(handle: DeltaTable, net: NetChanges, table: str) -> NetChanges:
    """The same net changes without moved rows: their values stand in ``rows``.

    Raises:
        TableError: the target lacks a row that values have to come from.
    """
    if not len(net.moved):
        return net
    wanted = [name for name, mask in net.absent.items() if mask[net.moved].any()]
    needed = pa.schema([net.rows.schema.field(name) for name in (*net.key, *wanted)])
    sources = _read(handle, net.moved_keys, needed)
    place = {row: i for i, row in enumerate(_tuples(sources.select(net.key)))}
    found = [place.get(row, -1) for row in _tuples(net.moved_keys)]
    if -1 in found:
        raise lacks_source_row(table)
    rows, absent = net.rows, dict(net.absent)
    for name in wanted:
        here = absent[name][net.moved]
        index = np.arange(len(rows))
        index[net.moved[here]] = len(rows) + np.array(found)[here]
        own = rows.column(name)
        both = pa.chunked_array([*own.chunks, *sources.column(name).chunks], type=own.type)
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), both.take(pa.array(index)))
        mask = absent.pop(name).copy()
        mask[net.moved] = False
        if mask.any():
            absent[name] = mask
    nothing = np.empty(0, np.int64)
    return replace(
        net, rows=rows, absent=absent, moved=nothing, moved_keys=net.moved_keys.slice(0, 0)
    )


def _read(handle: DeltaTable, keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's rows whose first key column has one of these values, perhaps some more."""
    first = keys.schema.names[0]
    wanted = pc.unique(keys.column(0))
    reader = pa.RecordBatchReader.from_stream(
        handle.scan(columns=schema.names, predicate=_predicate(first, wanted))
    )
    parts = []
    for batch in reader:
        # The engine gives text as views, which pyarrow cannot yet take by index.
        whole = batch.select(schema.names).cast(schema)
        parts.append(whole.filter(pc.is_in(whole.column(first), value_set=wanted)))
    return pa.Table.from_batches(parts, schema=schema)


def _predicate(name: str, wanted: pa.Array) -> str | None:
    """What lets the engine skip files; only for types whose literals are beyond doubt."""
    if pa.types.is_integer(wanted.type):
        if len(wanted) <= _FEW:
            return f"{quoted(name)} IN ({', '.join(map(str, wanted.to_pylist()))})"
        bounds = pc.min_max(wanted).as_py()
        return f"{quoted(name)} BETWEEN {bounds['min']} AND {bounds['max']}"
    if len(wanted) <= _FEW and (
        pa.types.is_string(wanted.type) or pa.types.is_large_string(wanted.type)
    ):
        literals = ("'" + text.replace("'", "''") + "'" for text in wanted.to_pylist())
        return f"{quoted(name)} IN ({', '.join(literals)})"
    return None


def _tuples(keys: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
