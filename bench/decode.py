"""Decoding speed: pgoutput messages of 7 typed columns to Arrow, on one core.

    python bench/decode.py [rows]

The budget (design, "Budget"): 15 times the rate of pg_recvlogical, which is about 240 k
rows/s on the machine that the budget was set on: 3.6 M rows/s.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator

import numpy as np
import pyarrow as pa

from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import RawMessages, RelationInForce, SegmentView, plain_block
from pgsluice.types import TypeOptions
from pgsluice.wire import (
    Begin,
    Commit,
    Insert,
    OldKey,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    TupleData,
    Update,
)

OID = 16400
COLUMNS = (
    RelationColumn(1, "id", 20, -1),
    RelationColumn(0, "quantity", 23, -1),
    RelationColumn(0, "price", 1700, (12 << 16 | 2) + 4),
    RelationColumn(0, "customer", 25, -1),
    RelationColumn(0, "is_paid", 16, -1),
    RelationColumn(0, "day", 1082, -1),
    RelationColumn(0, "changed_at", 1184, -1),
)
RELATION = Relation(OID, "public", "orders", ReplicaIdentity.DEFAULT, COLUMNS)
SEGMENT_BYTES = 16 << 20
REPEATS = 5


def row(number: int, *, has_null: bool = False) -> TupleData:
    """One row of an order table, about 80 bytes of values."""
    return TupleData.of(
        str(number),
        str(number % 1000),
        f"{number % 100_000 / 100:.2f}",
        None if has_null and number % 5 == 0 else f"customer number {number}",
        "t" if number % 3 else "f",
        f"2024-{1 + number % 12:02}-{1 + number % 28:02}",
        f"2024-05-{1 + number % 28:02} 12:{number % 60:02}:00.{number % 1_000_000:06}+00",
    )


def inserts(rows: int, *, has_null: bool = False) -> Iterator[bytes]:
    """Raw Insert messages."""
    for number in range(rows):
        yield Insert(OID, row(number, has_null=has_null)).encode()


def updates(rows: int) -> Iterator[bytes]:
    """Raw Update messages, every second one with the old key."""
    for number in range(rows):
        key = TupleData.of(str(number), *(None,) * 6)
        yield Update(OID, OldKey(key) if number % 2 else None, row(number)).encode()


def segments(changes: Iterator[bytes]) -> list[SegmentView]:
    """Views of about the size that the spool writes, one transaction each."""
    in_force = {OID: RelationInForce(RELATION.encode(), None)}
    views: list[SegmentView] = []
    batch: list[bytes] = []
    size = 0
    for change in changes:
        batch.append(change)
        size += len(change)
        if size >= SEGMENT_BYTES:
            views.append(_view(batch, in_force))
            batch, size = [], 0
    if batch:
        views.append(_view(batch, in_force))
    return views


def _view(changes: list[bytes], in_force: dict[int, RelationInForce]) -> SegmentView:
    begin = Begin(Lsn(100), 0, 7).encode()
    commit = Commit(0, Lsn(100), Lsn(200), 0).encode()
    raw = RawMessages.from_messages([(100, message) for message in (begin, *changes, commit)])
    block = plain_block(raw)
    return SegmentView("bench", Lsn(0), Lsn(200), in_force, block)


def rate(views: list[SegmentView], oids: Collection[int] = (OID,)) -> float:
    """The best of some runs, rows a second of CPU time."""
    best = float("inf")
    total = 0
    for _ in range(REPEATS):
        start = time.process_time()
        total = sum(len(changes) for view in views for changes in _decode(view, oids))
        best = min(best, time.process_time() - start)
    return total / best


def _decode(view: SegmentView, oids: Collection[int]) -> Iterator[RelationChanges]:
    return decode_segment(view, oids, TypeOptions())


def main() -> None:
    """Print rows a second for three workloads."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    pa.set_cpu_count(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    workloads: dict[str, Callable[[], Iterator[bytes]]] = {
        "inserts": lambda: inserts(rows),
        "inserts, 20 % NULL in one column": lambda: inserts(rows, has_null=True),
        "updates, half with the old key": lambda: updates(rows),
    }
    print(f"numpy {np.__version__}, pyarrow {pa.__version__}, {rows} rows, 7 columns, one core")
    for name, make in workloads.items():
        print(f"{name:36} {rate(segments(make())) / 1e6:6.2f} M rows/s")


if __name__ == "__main__":
    main()
