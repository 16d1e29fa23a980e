"""Reads target rows that a MERGE does not return, from the version on which it starts.

A MERGE matches a row by its final key: after a swap of two keys, it would find the wrong row. So
rows with a changed key are read under their key before the batch. And it silently changes all rows
of a key: if nothing proves that keys are unique, the rows are counted first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import columns_of_sources, resolve_rekeyed
from pgsluice.changes.unique import UnprovedKeys
from pgsluice.sinks.lake.data_files import dead_rows, rows_at
from pgsluice.sinks.lake.keys.entries import Hits
from pgsluice.sinks.lake.merge.key_scan import KeyScan
from pgsluice.sinks.lake.merge.net_merge import without_dead
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot


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
        yield file, without_dead(hits, dead_rows(snapshot.folder, file))
