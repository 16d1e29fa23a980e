"""Random keys of a large Delta table change: our own merges beside deltalake's MERGE.

Then how a table reads after many batches and their upkeep, beside one that was just written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.support.delta_spark import delta_spark

from bench.report import Line
from pgsluice.changes.deleted_rows import with_marks
from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.history.versions import versions_of
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.columnar.changes import Int64s
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TableHandle, TargetTable
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.log.reading import newest_snapshot
from pgsluice.sinks.delta.log.snapshot import no_table
from pgsluice.sinks.delta.ruled.handle import RuledHandle
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import CURRENT, TargetIdentity, TargetMode
from pgsluice.sinks.lake.staging import TARGET_FILE_BYTES
from pgsluice.sinks.writers import table_writer
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.wire import ReplicaIdentity

CHANGED = (500, 10_000)
Way = Literal["on_read", "on_write", "MERGE"]
WAYS: tuple[Way, ...] = ("on_read", "on_write", "MERGE")
"""How changes get into a table; ``MERGE`` is deltalake's, as for tables in object stores."""
_REACH = {(500, 10**6): "50 x", (500, 10**7): "200 x"}
_BATCHES = 3
_MANY_BATCHES = 200
_BATCHES_OF_MODES = 15
_READS = 15
_SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("b", pa.string())]
)
TABLE = TargetTable("public", "t", _SCHEMA, ("id",))
_HISTORY, _DELETED = HistoryColumns("_"), "gone_at"
IDENTITY = TargetIdentity("5b0a7c1e-0000-4000-8000-000000000001", 16384, 1)


def measure(rows: int) -> list[Line]:
    """CPU and bytes of a batch of random updates, without the first; and reading after many."""
    folder = Path(tempfile.mkdtemp())
    try:
        copied = Copied(folder / "copied", rows)
        figures = {way: cost_of_batches(folder / way, way, copied) for way in WAYS}
        lines = [*_histories(folder, rows), *_kept(folder, rows), _without_a_key(folder, rows)]
        lines += _worn(folder, copied)
    finally:
        shutil.rmtree(folder)
    return [*_merges(figures, rows), *lines]


class Copied:
    """The rows of a table as files that are written once; each table gets links to them.

    Args:
        folder: where no file is yet.
        rows: how many.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.rows = rows
        self._folder = folder
        writer = TableWriter(DeltaSink(str(folder)), TABLE, IDENTITY)
        self._staged = writer.stage_load(copied_rows(rows), Lsn(1))

    def load(self, sink: Sink) -> None:
        """Make a table with these rows."""
        table = Path(sink.location(TABLE.namespace, TABLE.name))
        table.mkdir(parents=True)
        for file in self._folder.glob("*.parquet"):
            os.link(file, table / file.name)
        TableWriter(sink, TABLE, IDENTITY).commit_load([self._staged], Lsn(1))


@dataclass(frozen=True)
class Cost:
    """Of one batch: seconds of CPU and of time, and bytes written."""

    cpu_s: float
    took_s: float
    size: float

    def __str__(self) -> str:
        return (
            f"{1000 * self.cpu_s:.1f} ms of CPU in {1000 * self.took_s:.0f} ms, "
            f"{self.size / 1e6:.2f} MB written"
        )


def _merges(figures: Mapping[Way, Sequence[Cost]], rows: int) -> Iterator[Line]:
    for place, changed in enumerate(CHANGED):
        read, whole, merge = (figures[way][place] for way in WAYS)
        what = f"{changed:,} random keys into {rows:,} rows, merged on"
        reach = _REACH.get((changed, rows), "")
        for cost, reached, way in ((read, reach, "read"), (whole, "", "write")):
            times = merge.cpu_s / cost.cpu_s
            yield Line(
                f"{times:.{0 if times > 10 else 1}f} x less CPU",
                reached,
                f"{what} {way}",
                str(cost),
                f"MERGE: {merge}",
            )


@dataclass(frozen=True)
class _ThroughDeltalake:
    """Tables that deltalake writes."""

    sink: DeltaSink

    def location(self, namespace: str, name: str) -> str:
        return self.sink.location(namespace, name)

    def open(self, table: TargetTable, identity: TargetIdentity) -> TableHandle:
        folder = self.sink.folder(table.namespace, table.name)
        snapshot = newest_snapshot(folder)
        kind = DeltaHandle if snapshot is None else RuledHandle
        return kind(self.sink, table, identity, snapshot or no_table(folder), "on_write")


def _worn(folder: Path, copied: Copied) -> list[Line]:
    """A table after many batches, beside a copy of it that Spark has compacted, and a new table."""
    sink = DeltaSink(f"{folder}/{{table}}", merge="on_read", cache_dir=f"{folder}/keys")
    copied.load(sink)
    rows = copied.rows
    random = np.random.default_rng(8)
    used, written = 0.0, 0
    for position in range(2, _MANY_BATCHES + 2):
        net = updates(random.choice(rows, CHANGED[0], replace=False).tolist(), position)
        began, writer = time.process_time(), TableWriter(sink, TABLE, IDENTITY)
        written += writer.apply(net, Lsn(position)).bytes_written
        writer.maintain([])
        used += time.process_time() - began
    worn = sink.location("public", "t")
    new = f"{folder}/new"
    write_deltalake(new, DeltaTable(worn).scan(), target_file_size=TARGET_FILE_BYTES)
    files = len(DeltaTable(worn).file_uris())
    what = f"{rows:,} rows after {_MANY_BATCHES} batches of {CHANGED[0]} keys"
    lines = [
        Line(
            f"{1000 * used / _MANY_BATCHES:.0f} ms CPU",
            "",
            f"a batch and its upkeep: {what}",
            f"{written / _MANY_BATCHES / 1e6:.2f} MB written by a batch; {files} files",
        )
    ]
    with delta_spark(folder) as spark:
        compacted = str(shutil.copytree(worn, folder / "compacted"))
        spark.sql(f"REORG TABLE delta.`{compacted}` APPLY (PURGE)")
        spark.sql(f"OPTIMIZE delta.`{compacted}`")
        for name, read in {
            "polars": lambda location: pl.scan_delta(location).select(pl.all().max()).collect(),
            "deltalake": lambda location: DeltaTable(location).scan().read_all(),
            "Spark": lambda location: spark.rows(
                f"SELECT max(id), max(a), max(b) FROM delta.`{location}`"
            ),
        }.items():
            worn_s, compacted_s, new_s = _fastest(read, worn, compacted, new)
            lines.append(
                Line(
                    f"{worn_s / compacted_s:.2f} x",
                    "1.5 x",
                    f"{name} reads {what}",
                    f"{1000 * worn_s:.0f} ms",
                    f"compacted: {1000 * compacted_s:.0f} ms; a new table with these rows: "
                    f"{1000 * new_s:.0f} ms",
                )
            )
    return lines


def _histories(folder: Path, rows: int) -> Iterator[Line]:
    """A history beside current rows."""
    what = f"a history: {CHANGED[0]} keys into {rows:,} rows"
    return _beside_current(folder / "history", what, TargetMode(history=_HISTORY), rows)


def _kept(folder: Path, rows: int) -> Iterator[Line]:
    """Deleted rows that are kept beside current rows: every second change is a delete."""
    what = f"deleted rows kept: {CHANGED[0]} keys into {rows:,} rows"
    mode = TargetMode(deleted_column=_DELETED)
    return _beside_current(folder / "kept", what, mode, rows, deletes=True)


def _beside_current(
    folder: Path, what: str, mode: TargetMode, rows: int, *, deletes: bool = False
) -> Iterator[Line]:
    """Batches of random keys, then of the same keys; each in both tables, one after the other."""
    tables = [_Target(folder / each.name, each, rows, deletes) for each in (CURRENT, mode)]
    random = np.random.default_rng(9)

    def chosen() -> list[int]:
        ids: list[int] = random.choice(rows, CHANGED[0], replace=False).tolist()
        return ids

    def medians(batches: Iterable[list[int]]) -> list[float]:
        used = [[table.batch(ids) for table in tables] for ids in batches]
        return [float(np.median(of_table)) for of_table in zip(*used, strict=True)]

    _, first = medians([chosen()])
    random_keys = medians(chosen() for _ in range(_BATCHES_OF_MODES))
    same = chosen()
    medians([same] * _MANY_BATCHES)
    same_keys = medians([same] * _BATCHES_OF_MODES)
    for kind, (current, used), more in (
        ("random keys", random_keys, f"; the first {1000 * first:.0f}"),
        (f"the same keys after {_MANY_BATCHES} batches", same_keys, ""),
    ):
        yield Line(
            f"{used / current:.1f} x CPU",
            "2 x",
            f"{what}, {kind}",
            f"{1000 * used:.1f} ms of CPU a batch{more}",
            f"current rows: {1000 * current:.1f} ms",
        )


def _without_a_key(folder: Path, rows: int) -> Line:
    """Deletes of a table without a key, each of which finds one of its rows."""
    table = replace(TABLE, key=(), has_whole_rows=True)
    sink = DeltaSink(f"{folder}/keyless/{{table}}", merge="on_read", cache_dir=f"{folder}/keys")
    TableWriter(sink, table, IDENTITY).load(copied_rows(rows), Lsn(1))
    every = pa.Table.from_batches(copied_rows(rows))
    chosen = np.random.default_rng(9).choice(rows, CHANGED[0] * _BATCHES, replace=False)
    taken = []
    for number, some in enumerate(np.split(chosen, _BATCHES)):
        changes = ChangesBuilder(_SCHEMA, (), identity=ReplicaIdentity.FULL)
        for row in every.take(some).to_pylist():
            changes.delete(dict(zip(_SCHEMA.names, row.values(), strict=True)))
        net = net_changes([changes.build()], schema=_SCHEMA, key=())
        began = time.perf_counter()
        applied = TableWriter(sink, table, IDENTITY).apply(net, Lsn(number + 2))
        taken.append(time.perf_counter() - began)
        assert applied.rows_deleted == CHANGED[0]
    what = f"without a key: {CHANGED[0]} deletes by full row out of {rows:,} rows"
    return Line(f"{taken[0]:.2f} s", "1 s", what, f"later ones: {max(taken[1:]):.2f} s", "")


class _Target:
    """A table in some mode.

    Args:
        deletes: every second change of a batch deletes, or inserts what one has deleted.
    """

    def __init__(self, folder: Path, mode: TargetMode, rows: int, deletes: bool) -> None:
        self._identity = replace(IDENTITY, mode=mode)
        self._sink = DeltaSink(f"{folder}/{{table}}", merge="on_read", cache_dir=f"{folder}/keys")
        self._deletes, self._gone, self._position = deletes, set[int](), 1
        self._writer().load(copied_rows(rows), Lsn(1))

    def batch(self, ids: list[int]) -> float:
        """Seconds of CPU of a batch, without its upkeep."""
        self._position += 1
        position, mode = self._position, self._identity.mode
        if mode.history:
            net = _versions(ids, position)
        elif self._deletes:
            net = _half_deleted(ids, position, mode, self._gone)
        else:
            net = updates(ids, position)
        began, writer = time.process_time(), self._writer()
        writer.apply(net, Lsn(position))
        used = time.process_time() - began
        writer.maintain([])
        return used

    def _writer(self) -> TableWriter:
        return table_writer(self._sink, TABLE, self._identity)


def _versions(ids: list[int], position: int) -> NetChanges:
    changes = ChangesBuilder(_SCHEMA, position=position)
    for number in ids:
        changes.update({"id": number, "a": position, "b": str(position)})
    [net] = versions_of([changes.build()], _HISTORY, schema=_SCHEMA, key=TABLE.key, missing={})
    return net


def _half_deleted(ids: list[int], position: int, mode: TargetMode, gone: set[int]) -> NetChanges:
    """Deletes of every second key, and new values of the others.

    Args:
        gone: the keys that are deleted, and are inserted again; changed here.
    """
    changes, times = ChangesBuilder(_SCHEMA), list[Int64s]()
    for place, number in enumerate(ids):
        row = {"id": number, "a": position, "b": str(position)}
        if number in gone:
            gone.remove(number)
            changes.insert(row)
        elif (place + position) % 2:
            gone.add(number)
            changes.delete({"id": number})
        else:
            changes.update(row)
    net = net_changes(
        [changes.build()], schema=_SCHEMA, key=TABLE.key, is_complete=False, times=times
    )
    return with_marks(net, _DELETED, np.concatenate(times)) if mode.deleted_column else net


def _fastest(read: Callable[[str], object], *locations: str) -> list[float]:
    """Seconds of the fastest of some reads of each table, in turns; the first loads what the
    reader needs."""
    times = {location: list[float]() for location in locations}
    for _ in range(_READS):
        for location, taken in times.items():
            began = time.perf_counter()
            read(location)
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times.values()]


def cost_of_batches(
    folder: Path, way: Way, copied: Copied, numbers: Sequence[int] = CHANGED
) -> list[Cost]:
    """For each number of changed keys, what one batch costs; the first one does not count."""
    ours = DeltaSink(
        f"{folder}/{{table}}",
        merge="on_read" if way == "on_read" else "on_write",
        cache_dir=f"{folder}/keys",
    )
    sink: Sink = _ThroughDeltalake(ours) if way == "MERGE" else ours
    copied.load(sink)
    random = np.random.default_rng(7)
    position, figures = 1, []
    for changed in numbers:
        costs = []
        for _ in range(_BATCHES + 1):
            position += 1
            net = updates(random.choice(copied.rows, changed, replace=False).tolist(), position)
            began, used = time.perf_counter(), time.process_time()
            applied = TableWriter(sink, TABLE, IDENTITY).apply(net, Lsn(position))
            used, took = time.process_time() - used, time.perf_counter() - began
            costs.append((used, took, applied.bytes_written))
        figures.append(Cost(*(sum(each) / _BATCHES for each in zip(*costs[1:], strict=True))))
    return figures


def copied_rows(rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a table, with ids from 0 on."""
    random = np.random.default_rng(1)
    for first in range(0, rows, 64 * 1024):
        ids = np.arange(first, min(first + 64 * 1024, rows))
        values = random.integers(0, 2**31, len(ids)).astype(np.int32)
        text = pa.array(values).cast(pa.string())
        yield pa.record_batch([pa.array(ids), pa.array(values), text], schema=_SCHEMA)


def updates(ids: list[int], position: int) -> NetChanges:
    """Rows with these ids get new values."""
    changes = ChangesBuilder(_SCHEMA)
    for number in ids:
        changes.update({"id": number, "a": position, "b": str(position)})
    return net_changes([changes.build()], schema=_SCHEMA, key=TABLE.key)
