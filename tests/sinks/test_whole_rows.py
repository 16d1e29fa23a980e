"""Tables without a key, where processes are killed between files and commit, and their indexes."""

from __future__ import annotations

import multiprocessing
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.sinks.cached_files import key_files
from tests.support.object_stores import ObjectStore

from pgsluice import failpoints
from pgsluice.changes import key_numbers
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.sink_tests import SCHEMA, batches, identity, row
from pgsluice.testing.sink_whole_rows import net_whole, whole

pytestmark = pytest.mark.usefixtures("keeps_small_groups")

BAG = TargetTable("public", "t", SCHEMA, (), has_whole_rows=True)


def writer(sink: DeltaSink) -> TableWriter:
    return TableWriter(sink, BAG, identity())


def rows_of(sink: DeltaSink) -> Counter[tuple[Any, ...]]:
    delta = DeltaTable(sink.location("public", "t"), storage_options=sink.storage_options)
    read = pa.RecordBatchReader.from_stream(delta.scan()).read_all().to_pylist()
    return Counter(tuple(each.values()) for each in read)


def copy(sink: DeltaSink, *rows: dict[str, Any]) -> None:
    writer(sink).load(batches(*rows), Lsn(100))


def work(sink: DeltaSink, armed: str) -> None:
    """Changes at once, and in pieces, each unless the target has them."""
    failpoints.arm(armed)
    first = writer(sink)
    if (first.position() or 0) < 110:
        t = whole()
        t.delete(row(1))
        t.update(row(1, 5), old=row(1))
        first.apply(net_whole(t), Lsn(110))
    second = writer(sink)
    if (second.position() or 0) < 120:
        one, two = whole(position=120), whole(position=120)
        one.update(row(1, 6), old=row(1, 5))
        one.insert(row(7))
        two.delete(row(1, 6))
        two.update(row(3), old=row(2))
        second.apply_pieces(map(net_whole, (one, two)), Lsn(120))


def repeated(sink: DeltaSink, armed: str, method: Any) -> None:
    """Kill a process at a failpoint, and do its work again."""
    copy(sink, row(1), row(1), row(1), row(2), row(2))
    process = multiprocessing.get_context(method).Process(target=work, args=(sink, armed))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work(sink, "")
    assert rows_of(sink) == Counter(
        tuple(each.values()) for each in (row(1), row(2), row(3), row(7))
    )


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("place", ["delta.written", "delta.before_commit", "delta.after_commit"])
def test_a_killed_attempt_is_repeated_once(
    tmp_path: Path, merge: Any, number: int, place: str
) -> None:
    sink = DeltaSink(f"{tmp_path}/{{table}}", merge=merge, cache_dir=f"{tmp_path}/keys")
    repeated(sink, f"{place}=kill@{number}", "fork")


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_a_killed_attempt_in_a_store_is_repeated_once(
    s3_store: ObjectStore, tmp_path: Path, merge: Any
) -> None:
    sink = DeltaSink(
        f"s3://lake/{uuid.uuid4()}/{{table}}",
        merge=merge,
        cache_dir=f"{tmp_path}/keys",
        storage_options=s3_store.options,
    )
    repeated(sink, "delta.after_commit=kill@2", "spawn")


def test_rows_with_the_same_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows have one hash: candidates are compared until enough equal ones are found."""
    monkeypatch.setattr(key_numbers, "spread", lambda numbers: numbers * 0)
    sink = DeltaSink(f"{tmp_path}/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys")
    copy(sink, *(row(n % 7, n % 3) for n in range(100)))
    t = whole()
    for _ in range(3):
        t.delete(row(6, 2))
        t.delete(row(0, 0))
    applied = writer(sink).apply(net_whole(t), Lsn(110))
    assert (applied.rows_deleted, applied.rows_skipped) == (6, 0)
    expected = Counter((n % 7, n % 3, "big") for n in range(100))
    expected -= Counter({(6, 2, "big"): 3, (0, 0, "big"): 3})
    assert rows_of(sink) == expected


def test_an_index_outlives_new_columns(tmp_path: Path) -> None:
    """The sidecars of files without the column are used as they are."""
    sink = DeltaSink(f"{tmp_path}/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys")
    copy(sink, row(1), row(1), row(2))
    wide = SCHEMA.append(pa.field("more", pa.string()))
    table = TargetTable("public", "t", wide, (), has_whole_rows=True)
    made = key_files(tmp_path)
    assert made
    t = whole(wide)
    t.insert({**row(3), "more": "x"})
    t.delete({**row(1), "more": None})
    TableWriter(sink, table, identity()).apply(net_whole(t, wide), Lsn(110))
    assert rows_of(sink) == Counter([(1, 0, "big", None), (2, 0, "big", None), (3, 0, "big", "x")])
    after = key_files(tmp_path)
    assert made.items() <= after.items(), "no data file was read for its hashes"
    assert {path.parent for path in after} == {path.parent for path in made}
