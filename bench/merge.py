"""Random keys of a large Delta table change: merge-on-read beside deltalake's MERGE."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.report import Line
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetIdentity, TargetTable
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ChangesBuilder

CHANGED = (500, 10_000)
_BATCHES = 3
_SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("b", pa.string())]
)
_TABLE = TargetTable("public", "t", _SCHEMA, ("id",))
_IDENTITY = TargetIdentity("5b0a7c1e-0000-4000-8000-000000000001", 16384, 1)


def measure(rows: int) -> list[Line]:
    """CPU and bytes of a batch of random updates; the first batch is not counted."""
    folder = Path(tempfile.mkdtemp())
    try:
        figures = {way: _measured(folder / way, way, rows) for way in ("on_read", "on_write")}
    finally:
        shutil.rmtree(folder)
    lines = []
    for place, changed in enumerate(CHANGED):
        (own_s, own_bytes), (merge_s, merge_bytes) = (
            figures[way][place] for way in ("on_read", "on_write")
        )
        lines.append(
            Line(
                f"{1000 * own_s:.0f} ms",
                f"{merge_s / own_s:.0f} x less than MERGE",
                f"{changed:,} random keys into {rows:,} rows, merged on read",
                "CPU of a batch",
                f"{own_bytes / 1e6:.2f} MB written; MERGE: {1000 * merge_s:.0f} ms,"
                f" {merge_bytes / 1e6:.1f} MB",
            )
        )
    return lines


def _measured(folder: Path, way: Merge, rows: int) -> list[tuple[float, float]]:
    """For each number of changed keys: seconds of CPU and bytes written of one batch."""
    sink = DeltaSink(f"{folder}/{{table}}", merge=way, cache_dir=f"{folder}/keys")
    TableWriter(sink, _TABLE, _IDENTITY).load(_copied(rows), Lsn(1))
    random = np.random.default_rng(7)
    position, figures = 1, []
    for changed in CHANGED:
        used = []
        for _ in range(_BATCHES + 1):
            position += 1
            net = _updates(random.choice(rows, changed, replace=False).tolist(), position)
            began = time.process_time()
            applied = TableWriter(sink, _TABLE, _IDENTITY).apply(net, Lsn(position))
            used.append((time.process_time() - began, applied.bytes_written))
        seconds, written = zip(*used[1:], strict=True)
        figures.append((sum(seconds) / _BATCHES, sum(written) / _BATCHES))
    return figures


def _copied(rows: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for first in range(0, rows, 64 * 1024):
        ids = np.arange(first, min(first + 64 * 1024, rows))
        values = random.integers(0, 2**31, len(ids)).astype(np.int32)
        text = pa.array(values).cast(pa.string())
        yield pa.record_batch([pa.array(ids), pa.array(values), text], schema=_SCHEMA)


def _updates(ids: list[int], position: int) -> NetChanges:
    changes = ChangesBuilder(_SCHEMA)
    for number in ids:
        changes.update({"id": number, "a": position, "b": str(position)})
    return net_changes([changes.build()], schema=_SCHEMA, key=_TABLE.key)
