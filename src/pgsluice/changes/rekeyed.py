"""Completes rows whose key changed, with their rows in the target.

Such a row exists only if the target has a row with its key before the batch (a source row). A sink
reads the source rows from the version that it is about to change; searching by the final key would
find another row, or none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pgsluice.changes.lineage import find_rows
from pgsluice.changes.net import NetChanges
from pgsluice.columnar.changes import Int64s, Mask


def columns_of_sources(net: NetChanges) -> tuple[str, ...]:
    """The columns of the source rows that :func:`resolve_rekeyed` needs: the key, and absent
    values."""
    wanted = [name for name, mask in net.absent.items() if mask[net.rekeyed].any()]
    return (*net.key, *wanted)


def resolve_rekeyed(net: NetChanges, sources: pa.Table) -> tuple[NetChanges, int]:
    """The same net changes with rekeyed rows resolved, and the number of skipped ones.

    As :func:`resolve_keys`, but the rekeyed rows also get their absent values.

    Args:
        sources: rows of the target with at least :func:`columns_of_sources`: all rows with a source
            key, and maybe others.
    """
    if not len(net.rekeyed):
        return net, 0
    source_rows = find_rows(net.source_keys, sources, net.key)
    has_source = source_rows >= 0
    resolved, row_of_source = resolve_keys(net, has_source)
    is_rekeyed = np.zeros(len(resolved.rows), np.bool_)
    is_rekeyed[row_of_source[has_source]] = True
    rows, absent = resolved.rows, {}
    for name, mask in resolved.absent.items():
        if (lacks := mask & is_rekeyed).any():
            givers = source_rows[has_source][lacks[is_rekeyed]]
            rows = with_values(rows, name, lacks, sources.column(name).take(pa.array(givers)))
        if (still_lacks := mask & ~is_rekeyed).any():
            absent[name] = still_lacks
    return replace(resolved, rows=rows, absent=absent), len(net.rows) - len(rows)


def resolve_keys(net: NetChanges, has_source: Mask) -> tuple[NetChanges, Int64s]:
    """The same net changes with rekeyed rows resolved.

    A rekeyed row with a source row becomes an inserted row; its absent values are those of the
    source row. A rekeyed row without one is removed, and the deletes of its source key and its
    final key are corrected.

    Args:
        has_source: for each source key, whether the target has a row with it.

    Returns:
        the changes, and for each source key the index of its row, in ascending order; -1: it was
            removed.
    """
    inserted = net.inserted.copy()
    inserted[net.rekeyed[has_source]] = True
    keep = np.ones(len(net.rows), np.bool_)
    keep[net.rekeyed[~has_source]] = False
    kept_masks = {name: mask[keep] for name, mask in net.absent.items()}
    missing = net.source_keys.filter(pa.array(~has_source))
    ended = net.deletes
    if net.marked is not None:
        ended = net.rows.select(net.key).filter(pa.array(net.marked)).cast(ended.schema)
    is_missing = find_rows(ended, missing, net.key) >= 0
    resolved = replace(
        net,
        rows=net.rows.take(pa.array(np.flatnonzero(keep))),
        inserted=inserted[keep],
        absent={name: mask for name, mask in kept_masks.items() if mask.any()},
        rekeyed=np.empty(0, np.int64),
        source_keys=net.source_keys.slice(0, 0),
        takes_ended_key=np.empty(0, np.bool_),
        marked=None if net.marked is None else net.marked[keep],
        deletes=_deletes(net, has_source, missing),
        expected_deletes=net.expected_deletes - int(np.count_nonzero(is_missing)),
    )
    return resolved, np.where(has_source, (np.cumsum(keep) - 1)[net.rekeyed], -1)


def with_values(rows: pa.Table, name: str, lacks: Mask, values: pa.ChunkedArray) -> pa.Table:
    """The same rows with other values of a column in the rows that ``lacks`` marks, in their
    order."""
    own = rows.column(name)
    index = np.arange(len(rows))
    index[lacks] = len(rows) + np.arange(len(values))
    both = pa.chunked_array([*own.chunks, *values.cast(own.type).chunks], type=own.type)
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), both.take(pa.array(index)))


def _deletes(net: NetChanges, has_source: Mask, missing: pa.Table) -> pa.Table:
    """The keys to delete: also those that removed rows do not replace; without missing ones."""
    not_replaced = net.rekeyed[net.takes_ended_key & ~has_source]
    keys = net.rows.select(net.key).take(pa.array(not_replaced)).cast(net.deletes.schema)
    deletes = pa.concat_tables([net.deletes, keys])
    return deletes.filter(pa.array(find_rows(deletes, missing, net.key) < 0))
