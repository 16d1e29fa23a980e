"""Applies net changes as one MERGE.

The source's columns are named by number, so that they cannot collide with a user's names:
``c0, c1, …`` are the values, ``a0, a1, …`` are true where the target's value stays, ``op`` is
true for a row to delete, ``ins`` for a row that is inserted if the target lacks it. The target's
names are quoted.

Some rows of the target are read before, from the version on which the MERGE starts. A MERGE matches
a row by its final key: after a swap of two keys, it would find the wrong row. So rows with a
changed key are read under their key before the batch. And it silently changes all rows of a key: if
nothing proves that keys are unique, the rows are counted first.

deltalake writes bounds of decimals as doubles, which rounds more than 15 digits, and ignores NaN in
bounds of floats. With such bounds, a reader would skip files that have matching rows, so they are
not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, CommitProperties, DeltaTable, WriterProperties

from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import columns_of_sources, resolve_rekeyed
from pgsluice.changes.unique import UnprovedKeys
from pgsluice.sinks.delta.log.columns import as_stored, existing_schema, written_schema
from pgsluice.sinks.lake.data_files import dead_rows, rows_at
from pgsluice.sinks.lake.keys.entries import Hits
from pgsluice.sinks.lake.merge.key_scan import KeyScan
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot

_DIGITS_OF_A_DOUBLE = 15
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970."""


def quoted(name: str) -> str:
    """A column's name, quoted for deltalake's SQL engine."""
    return '"' + name.replace('"', '""') + '"'


def merge(handle: DeltaTable, net: NetChanges, commit: CommitProperties) -> dict[str, Any]:
    """Apply net changes that do not truncate, with a key and without rekeyed rows
    (:func:`read_and_resolve`), in one commit; returns deltalake's metrics."""
    names = net.schema.names
    column_index = {name: i for i, name in enumerate(names)}
    source = _source(net)
    keys = {name: source.column(f"c{column_index[name]}") for name in net.key}
    on = " AND ".join(
        _equality(f"t.{quoted(name)}", f"s.c{column_index[name]}", values.type)
        for name, values in keys.items()
    )
    updates = {
        quoted(name): f"CASE WHEN s.a{i} THEN t.{quoted(name)} ELSE s.c{i} END"
        if name in net.absent
        else f"s.c{i}"
        for i, name in enumerate(names)
        if name not in net.key
    }
    if not updates:  # only key columns: a row that is there is counted, too
        updates = {quoted(net.key[0]): f"s.c{column_index[net.key[0]]}"}
    computed = {*existing_schema(handle).names} - {*written_schema(handle, names).names}
    updates |= {quoted(name): "NULL" for name in computed}
    inserts = {quoted(name): f"s.c{i}" for i, name in enumerate(names)}
    # streamed_exec=False: the source is in memory anyway, and deltalake then skips files of
    # the target by the source's smallest and largest key, which it prints as literals.
    merger = handle.merge(
        source,
        predicate=on,
        source_alias="s",
        target_alias="t",
        streamed_exec=not all(map(_has_literals, keys.values())),
        writer_properties=writer_properties(existing_schema(handle)),
        commit_properties=commit,
    )
    if len(net.deletes):
        merger = merger.when_matched_delete("s.op")
    if len(net.rows):
        merger = merger.when_matched_update(updates, predicate="NOT s.op")
        merger = merger.when_not_matched_insert(inserts, predicate="s.ins")
    metrics: dict[str, Any] = merger.execute()
    return metrics


def _equality(target: str, source: str, kind: pa.DataType) -> str:
    """The condition that two values of a key column are equal, by the definition of
    :func:`pgsluice.changes.lineage.number_rows`.

    deltalake skips files by ``=``, also by bounds that are not exact (:func:`.has_exact_bounds`).
    It does not look at bounds for texts of values, by which 0 and -0 differ, too.
    """
    if has_exact_bounds(kind):
        return f"{target} = {source}"
    return f"CAST({target} AS VARCHAR) = CAST({source} AS VARCHAR)"


def _has_literals(values: pa.ChunkedArray) -> bool:
    """Whether deltalake can print all values as literals: not lists, nor other years than 1 to
    9999."""
    if pa.types.is_list(values.type):
        return False
    if not pa.types.is_timestamp(values.type):
        return True
    bounds = pc.min_max(values.cast(pa.int64()))
    is_printed: bool = bounds["min"].as_py() >= _FIRST_US and bounds["max"].as_py() <= _LAST_US
    return is_printed


def _source(net: NetChanges) -> pa.Table:
    rows, deletes = len(net.rows), len(net.deletes)
    columns: dict[str, pa.ChunkedArray] = {}
    for i, field in enumerate(net.schema):
        deleted = (
            net.deletes.column(field.name)
            if field.name in net.key
            else pa.chunked_array([pa.nulls(deletes, field.type)])
        )
        columns[f"c{i}"] = pa.chunked_array(
            [*net.rows.column(field.name).chunks, *deleted.chunks], type=field.type
        )
        if field.name in net.absent:
            columns[f"a{i}"] = pa.array(
                np.append(net.absent[field.name], np.zeros(deletes, np.bool_))
            )
    columns["ins"] = pa.array(np.append(net.inserted, np.zeros(deletes, np.bool_)))
    columns["op"] = pa.array(np.arange(rows + deletes) >= rows)
    return as_stored(pa.table(columns))


def read_and_resolve(snapshot: Snapshot, net: NetChanges) -> tuple[NetChanges, int]:
    """The same net changes with rekeyed rows resolved, and the number of rows that the target does
    not have."""
    needed = pa.schema([net.rows.schema.field(name) for name in columns_of_sources(net)])
    rows = [needed.empty_table()]
    for file, hits in _live(snapshot, net.source_keys):
        rows += rows_at(snapshot.folder, file, np.sort(hits.rows), needed)
    return resolve_rekeyed(net, pa.concat_tables(rows))


def refuse_shared(snapshot: Snapshot, unproved: UnprovedKeys, table: str) -> None:
    """Check that no key of a batch has too many rows: a MERGE would change them all, and report it
    only afterwards.

    Raises:
        TableError: rows have the same key.
    """
    found = Hits.joined([hits for _, hits in _live(snapshot, unproved.keys)])
    unproved.refuse_shared(found.wanted, table)


def _live(snapshot: Snapshot, keys: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
    """The live rows of each file that have one of these keys."""
    types = pa.schema([snapshot.schema.field(name) for name in keys.schema.names])
    for file, hits in KeyScan(snapshot.folder, types).find(snapshot.files.values(), keys):
        yield file, hits.without(dead_rows(snapshot.folder, file))


def has_exact_bounds(kind: pa.DataType) -> bool:
    """Whether deltalake writes and compares exact bounds of a column."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _DIGITS_OF_A_DOUBLE)
    return not pa.types.is_floating(kind)


def writer_properties(schema: pa.Schema) -> WriterProperties:
    """How deltalake writes files with these columns: compressed, with bounds only where they are
    exact."""
    none = ColumnProperties(statistics_enabled="NONE")
    without = [field.name for field in schema if not has_exact_bounds(field.type)]
    # With properties of our own, deltalake would not compress by default.
    return WriterProperties(
        compression="SNAPPY", column_properties=dict.fromkeys(without, none) if without else None
    )
