"""Targets that keep deleted rows, where processes are killed between files and commit."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pgsluice import failpoints
from pgsluice.changes.deleted_rows import with_marks
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.columnar.changes import Int64s
from pgsluice.lsn import Lsn
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.identity import TargetIdentity, TargetMode
from pgsluice.sinks.writers import MarkingWriter
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_tests import SCHEMA, SPOOL, TABLE, batches, changes, row

pytestmark = pytest.mark.usefixtures("keeps_small_groups")

MODE = TargetMode(deleted_column="gone_at")


def writer(sink: DeltaSink, copy: int = 1) -> MarkingWriter:
    return MarkingWriter(sink, TABLE, TargetIdentity(SPOOL, 16384, copy, MODE))


def marked(t: ChangesBuilder) -> NetChanges:
    times: list[Int64s] = []
    net = net_changes([t.build()], schema=SCHEMA, key=("id",), is_complete=False, times=times)
    return with_marks(net, "gone_at", np.concatenate(times))


def work(sink: DeltaSink, armed: str) -> None:
    """A delete, a TRUNCATE and a copy again, each unless the target has it."""
    failpoints.arm(armed)
    first = writer(sink)
    if (first.position() or 0) < 110:
        t = changes()
        t.delete({"id": 1})
        first.apply(marked(t), Lsn(110))
    second = writer(sink)
    if (second.position() or 0) < 120:
        t = changes()
        t.truncate()
        t.insert(row(2))
        second.apply_pieces(second.truncation(marked(t), 1_000_000), Lsn(120))
    third = writer(sink, copy=2)
    third.commit_load([third.stage_load(batches(row(3), row(4)), Lsn(200))], Lsn(200))


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("place", ["delta.written", "delta.before_commit", "delta.after_commit"])
def test_a_killed_attempt_is_repeated_once(
    tmp_path: Path, merge: Any, number: int, place: str
) -> None:
    sink = DeltaSink(f"{tmp_path}/{{table}}", merge=merge, cache_dir=f"{tmp_path}/keys")
    writer(sink).load(batches(row(1), row(2), row(3)), Lsn(100))
    armed = f"{place}=kill@{number}"
    process = multiprocessing.get_context("fork").Process(target=work, args=(sink, armed))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work(sink, "")
    scan = DeltaTable(tmp_path / "t").scan()
    rows = pa.RecordBatchReader.from_stream(scan).read_all().to_pylist()
    assert {each["id"]: each["gone_at"] is not None for each in rows} == {
        1: True,
        2: True,
        3: False,
        4: False,
    }
    assert len(rows) == 4
