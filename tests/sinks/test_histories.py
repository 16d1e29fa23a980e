"""Histories against a model of them, and where processes are killed between files and commit."""

from __future__ import annotations

import multiprocessing
import random
import signal
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.histories import history_of
from tests.support.object_stores import ObjectStore

from pgsluice import failpoints
from pgsluice.lsn import Lsn
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.identity import TargetIdentity, TargetMode
from pgsluice.sinks.lake.history.copied_again import same_rows
from pgsluice.sinks.writers import HistoryWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_history import HISTORY, versions
from pgsluice.testing.sink_tests import SPOOL, TABLE, batches, changes, row

pytestmark = pytest.mark.usefixtures("keeps_small_groups")

MODE = TargetMode(history=HISTORY)
Rows = dict[int, tuple[Any, Any]]


def writer(sink: DeltaSink, copy: int = 1) -> HistoryWriter:
    return HistoryWriter(sink, TABLE, TargetIdentity(SPOOL, 16384, copy, MODE))


def sink_in(folder: Path, merge: Any) -> DeltaSink:
    return DeltaSink(f"{folder}/{{table}}", merge=merge, cache_dir=f"{folder}/keys")


def as_of(history: pa.Table, position: int) -> Rows:
    return {
        each["id"]: (each["a"], each["big"])
        for each in history.to_pylist()
        if each["_valid_from"] <= position
        and (each["_valid_to"] is None or each["_valid_to"] > position)
    }


def transaction(rng: random.Random, t: ChangesBuilder, rows: Rows) -> None:
    """Some random changes of ids 1 to 12."""
    for _ in range(rng.randint(1, 4)):
        number, other, value = rng.randint(1, 12), rng.randint(1, 12), rng.randint(0, 99)
        if rng.random() < 0.03:
            t.truncate()
            rows.clear()
        elif number not in rows:
            t.insert(row(number, value, f"new {value}"))
            rows[number] = value, f"new {value}"
        elif rng.random() < 0.25:
            t.delete({"id": number})
            del rows[number]
        elif other not in rows and rng.random() < 0.4:
            t.update(row(other, value, ABSENT), old={"id": number})
            rows[other] = value, rows.pop(number)[1]
        else:
            big = rng.choice([ABSENT, None, f"other {value}"])
            t.update(row(number, value, big))
            rows[number] = value, rows[number][1] if big is ABSENT else big


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize("seed", [0])
def test_as_of_each_position_a_history_is_the_model(tmp_path: Path, merge: Any, seed: int) -> None:
    """Batches of some transactions, divided anywhere, with copies again and maintenance."""
    rng, sink = random.Random(seed), sink_in(tmp_path, merge)
    rows: Rows = {1: (1, "first"), 2: (2, None)}
    writer(sink).load(batches(*(row(n, a, big) for n, (a, big) in rows.items())), Lsn(100))
    moments: dict[int, Rows] = {100: dict(rows)}
    position, copy = 100, 1
    for number in range(12):
        pieces = []
        t = changes()
        for _ in range(rng.randint(1, 6)):
            position += 1
            t.position, t.ordinal = position, 0
            transaction(rng, t, rows)
            if rng.random() < 0.3:  # another piece, in the middle of this transaction
                pieces += versions(t)
                t = changes()
                t.position, t.ordinal = position, 100
                transaction(rng, t, rows)
            moments[position] = dict(rows)
        pieces += versions(t)
        target = writer(sink, copy)
        target.position()
        if len(pieces) == 1:
            target.apply(pieces[0], Lsn(position))
        else:
            target.apply_pieces(pieces, Lsn(position))
        target.maintain([])
        if number % 4 == 3:
            position, copy = position + 1, copy + 1
            if rows:
                rows[rng.choice([*rows])] = number, "changed in a gap"
            rows.pop(rng.randint(1, 12), None)
            again = [row(n, a, big) for n, (a, big) in rows.items()]
            writer(sink, copy).load(batches(*again), Lsn(position))
            moments[position] = dict(rows)
        if number % 3 == 2:
            history = history_of(DeltaTable(tmp_path / "t"))
            for moment, expected in moments.items():
                assert as_of(history, moment) == expected, moment
    names = {path.name.partition("-")[0] for path in tmp_path.glob("t/*.parquet")}
    assert names == {"closed", "current"}


def test_files_that_others_have_joined_are_looked_at(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, "on_write")
    writer(sink).load(batches(row(1, 1), row(2, 2)), Lsn(100))
    for position in (101, 102):
        t = changes()
        t.position = position
        t.update(row(1, position, ABSENT))
        writer(sink).apply(versions(t)[0], Lsn(position))
    DeltaTable(tmp_path / "t").optimize.compact()
    assert [path for path in DeltaTable(tmp_path / "t").file_uris() if "/part-" in path]
    t = changes()
    t.position = 103
    t.delete({"id": 1})
    writer(sink).apply(versions(t)[0], Lsn(103))
    t = changes()
    t.position = 104
    t.truncate()
    writer(sink).apply(versions(t)[0], Lsn(104))
    history = history_of(DeltaTable(tmp_path / "t"))
    assert [as_of(history, position) for position in range(100, 105)] == [
        {1: (1, "big"), 2: (2, "big")},
        {1: (101, "big"), 2: (2, "big")},
        {1: (102, "big"), 2: (2, "big")},
        {2: (2, "big")},
        {},
    ]


def added_blindly(sink: DeltaSink, position: int, *rows: dict[str, Any]) -> None:
    """Versions of keys whose open ones stay open."""
    t = changes()
    t.position = position
    for each in rows:
        t.insert(each)
    [net] = versions(t)
    assert net.closings is not None
    none = np.empty(0, np.int64)
    closings = replace(net.closings, positions=none, times=none)
    target = writer(sink)
    target.position()
    target.apply(replace(net, deletes=net.deletes.slice(0, 0), closings=closings), Lsn(position))


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_a_copy_again_leaves_one_open_version_of_each_key(tmp_path: Path, merge: Any) -> None:
    """Whatever the target has: several versions of a key that are open end in their order."""
    sink = sink_in(tmp_path, merge)
    writer(sink).load(batches(*(row(n, 1) for n in range(1, 8))), Lsn(100))
    added_blindly(sink, 110, row(1, 1), row(2, 2), row(3, 2), row(4, 2), row(5, 2))
    added_blindly(sink, 120, row(1, 1), row(5, 1))
    again = [row(1, 1), row(2, 2), row(3, 1), row(5, 3), row(6, 1), row(8, 1)]
    writer(sink, copy=2).load(batches(*again), Lsn(200))
    found = history_of(DeltaTable(tmp_path / "t")).to_pylist()
    names = ("id", "a", "_valid_from", "_valid_to")
    assert sorted((tuple(each[name] for name in names) for each in found), key=repr) == [
        (1, 1, 100, 110),
        (1, 1, 110, 120),
        (1, 1, 120, None),
        (2, 1, 100, 110),
        (2, 2, 110, None),
        (3, 1, 100, 110),
        (3, 1, 200, None),
        (3, 2, 110, 200),
        (4, 1, 100, 110),
        (4, 2, 110, 200),
        (5, 1, 100, 110),
        (5, 1, 120, 200),
        (5, 2, 110, 120),
        (5, 3, 200, None),
        (6, 1, 100, None),
        (7, 1, 100, 200),
        (8, 1, 200, None),
    ]
    ends = {each["_valid_to"]: each["_valid_to_time"] for each in found if each["id"] == 1}
    begins = {each["_valid_from"]: each["_valid_from_time"] for each in found if each["id"] == 1}
    assert ends[110] == begins[110] is not None


def work(sink: DeltaSink, armed: str) -> None:
    """Updates, a TRUNCATE and a copy again, each unless the target has it."""
    failpoints.arm(armed)
    first = writer(sink)
    if (first.position() or 0) < 110:
        t = changes()
        t.position = 110
        t.update(row(1, 9, ABSENT))
        t.delete({"id": 3})
        first.apply(versions(t)[0], Lsn(110))
    second = writer(sink)
    if (second.position() or 0) < 120:
        t = changes()
        t.position = 120
        t.truncate()
        t.insert(row(2))
        t.insert(row(3))
        second.apply_pieces(versions(t), Lsn(120))
    third = writer(sink, copy=2)
    third.commit_load([third.stage_load(batches(row(3), row(4)), Lsn(200))], Lsn(200))


def killed_and_repeated(sink: DeltaSink, armed: str, context: str) -> None:
    writer(sink).load(batches(row(1), row(2), row(3)), Lsn(100))
    process = multiprocessing.get_context(context).Process(target=work, args=(sink, armed))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work(sink, "")
    table = DeltaTable(sink.location("public", "t"), storage_options=sink.storage_options)
    history = history_of(table)
    spans = {(r["id"], r["a"], r["_valid_from"], r["_valid_to"]) for r in history.to_pylist()}
    assert spans == {
        (1, 0, 100, 110),
        (1, 9, 110, 120),
        (2, 0, 100, 120),
        (2, 0, 120, 200),
        (3, 0, 100, 110),
        (3, 0, 120, None),
        (4, 0, 200, None),
    }
    assert len(spans) == len(history)


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("place", ["delta.written", "delta.before_commit", "delta.after_commit"])
def test_a_killed_attempt_is_repeated_once_on_a_disk(
    tmp_path: Path, merge: Any, number: int, place: str
) -> None:
    killed_and_repeated(sink_in(tmp_path, merge), f"{place}=kill@{number}", "fork")


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.parametrize("armed", ["delta.before_commit=kill@2", "delta.after_commit=kill@3"])
def test_a_killed_attempt_is_repeated_once_in_a_store(
    tmp_path: Path, s3_store: ObjectStore, armed: str
) -> None:
    url = f"s3://lake/{uuid.uuid4()}/{{table}}"
    cache = f"{tmp_path}/keys"
    sink = DeltaSink(url, merge="on_read", cache_dir=cache, storage_options=s3_store.options)
    killed_and_repeated(sink, armed, "spawn")


def test_equal_rows() -> None:
    """NULL and NaN are equal to themselves; 0 and -0 differ, as PostgreSQL prints them."""
    nan = float("nan")
    pair = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    values: list[tuple[pa.DataType, Any, Any, bool]] = [
        (pa.float64(), nan, nan, True),
        (pa.float64(), 0.0, -0.0, False),
        (pa.float32(), None, 0.0, False),
        (pa.list_(pa.int32()), [1, None], [1, None], True),
        (pa.list_(pa.int32()), [1, None], [1, 2], False),
        (pa.list_(pa.int32()), [], None, False),
        (pa.list_(pa.list_(pa.float64())), [[nan], []], [[nan], []], True),
        (pa.list_(pa.list_(pa.float64())), [[nan], []], [[], [nan]], False),
        (pa.binary(), b"\0", b"\0", True),
        (pair, {"x": 1, "y": ["a"]}, {"x": 1, "y": ["a"]}, True),
        (pair, {"x": 1, "y": ["a"]}, {"x": 1, "y": ["b"]}, False),
        (pair, None, {"x": None, "y": None}, False),
    ]
    for kind, one, other, expected in values:
        first, second = (pa.table({"c": pa.array([v, None], kind)}) for v in (one, other))
        assert same_rows(first, second).tolist() == [expected, True], (kind, one, other)
