"""Rows whose key changed: what the target's rows say about them.

Such a row exists only if the target has the row under its key before the batch. A sink reads
these source rows from the version that it is about to change, before it changes anything; a
match by the final key would find another row, or none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pgsluice.changes.lineage import find_rows
from pgsluice.changes.net import NetChanges
from pgsluice.columnar.changes import Mask


def columns_of_sources(net: NetChanges) -> tuple[str, ...]:
    """The columns that :func:`resolve_rekeyed` needs of the source rows: the key, and values."""
    wanted = [name for name, mask in net.absent.items() if mask[net.rekeyed].any()]
    return (*net.key, *wanted)


def resolve_rekeyed(net: NetChanges, sources: pa.Table) -> tuple[NetChanges, int]:
    """The same net changes without rekeyed rows, and how many of these are skipped.

    A rekeyed row with a source row is an inserted row that lacks no value. One without is left
    out, and what its source key and its final key still delete is set right.

    Args:
        net: with or without rekeyed rows.
        sources: rows of the target, with :func:`columns_of_sources` at least: all that have one
            of the source keys, and any others.
    """
    if not len(net.rekeyed):
        return net, 0
    source_rows = find_rows(net.source_keys, sources, net.key)
    has_source = source_rows >= 0
    rows, absent = net.rows, dict(net.absent)
    for name, mask in net.absent.items():
        lacks_value = mask[net.rekeyed] & has_source
        index = np.arange(len(rows))
        index[net.rekeyed[lacks_value]] = len(rows) + source_rows[lacks_value]
        if lacks_value.any():
            own = rows.column(name)
            both = pa.chunked_array(
                [*own.chunks, *sources.column(name).cast(own.type).chunks], type=own.type
            )
            column_index = rows.schema.get_field_index(name)
            field = rows.schema.field(column_index)
            rows = rows.set_column(column_index, field, both.take(pa.array(index)))
        absent[name] = mask.copy()
        absent[name][net.rekeyed] = False
    inserted = net.inserted.copy()
    inserted[net.rekeyed[has_source]] = True
    skipped = net.rekeyed[~has_source]
    keep = np.ones(len(rows), np.bool_)
    keep[skipped] = False
    kept_masks = {name: mask[keep] for name, mask in absent.items()}
    missing = net.source_keys.filter(pa.array(~has_source))
    is_missing = find_rows(net.deletes, missing, net.key) >= 0
    resolved = replace(
        net,
        rows=rows.take(pa.array(np.flatnonzero(keep))),
        inserted=inserted[keep],
        absent={name: mask for name, mask in kept_masks.items() if mask.any()},
        rekeyed=np.empty(0, np.int64),
        source_keys=net.source_keys.slice(0, 0),
        takes_ended_key=np.empty(0, np.bool_),
        deletes=_deletes(net, has_source, missing),
        expected_deletes=net.expected_deletes - int(np.count_nonzero(is_missing)),
    )
    return resolved, len(skipped)


def _deletes(net: NetChanges, has_source: Mask, missing: pa.Table) -> pa.Table:
    """What is deleted: also the rows that skipped rows do not replace; not what is missing."""
    not_replaced = net.rekeyed[net.takes_ended_key & ~has_source]
    keys = net.rows.select(net.key).take(pa.array(not_replaced)).cast(net.deletes.schema)
    deletes = pa.concat_tables([net.deletes, keys])
    return deletes.filter(pa.array(find_rows(deletes, missing, net.key) < 0))
