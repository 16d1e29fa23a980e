"""Which files of a change log may go, because they are too old.

A log rebuilds its table from the newest ``snapshot`` or ``truncate`` row before a position on: what
comes before that row does not count. So files go as a whole if all of their rows are before such a
row, and if that row is older than the retention. The table can then be rebuilt at any position from
that row on. A log without such a row keeps all files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.change_log import LogColumns
from pgsluice.sinks.delta.log.snapshot import DeltaFile, DeltaSnapshot
from pgsluice.sinks.lake.data_files import all_batches
from pgsluice.stores.contract import Folder

_RESETS = ("snapshot", "truncate")


def outdated(snapshot: DeltaSnapshot, log: LogColumns, retention_s: float) -> list[str]:
    """The names of the files that may go, if the log has to reach back so many seconds."""
    oldest_ms = (time.time() - retention_s) * 1000
    files: Iterable[DeltaFile] = snapshot.files.values()
    old = [file for file in files if file.action["modificationTime"] <= oldest_ms]
    names = (f"{log.prefix}change_type", f"{log.prefix}commit_version")
    ends = {file.name: _ends(snapshot.folder, file, *names) for file in old}
    reset = max((end[1] for end in ends.values()), default=-1)
    return [name for name, (last, _) in ends.items() if last < reset]


def _ends(folder: Folder, file: DeltaFile, kind: str, position: str) -> tuple[int, int]:
    """The largest position of a file's rows, and that of its newest row from which a table is
    rebuilt; -1: it has none."""
    known = file.statistics()
    first, last = (known.get(name) or {} for name in ("minValues", "maxValues"))
    if kind in first and position in last:
        if last[kind] < _RESETS[0] or first[kind] > _RESETS[-1]:
            return last[position], -1
        if first[kind] == last[kind] and first[kind] in _RESETS:
            return last[position], last[position]
    return _read_ends(folder, file, kind, position)


@lru_cache(maxsize=10_000)
def _read_ends(folder: Folder, file: DeltaFile, kind: str, position: str) -> tuple[int, int]:
    schema = pa.schema([pa.field(kind, pa.string()), pa.field(position, pa.int64())])
    last = reset = -1
    for batch in all_batches(folder, file, schema):
        positions = batch.column(position).to_numpy()
        is_reset = pc.is_in(batch.column(kind), value_set=pa.array(_RESETS)).to_numpy(False)
        last = max(last, int(np.max(positions, initial=-1)))
        reset = max(reset, int(np.max(positions[is_reset], initial=-1)))
    return last, reset
