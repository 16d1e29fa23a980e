"""The Delta sink's contract where the tables lie in an object store, by each way of merging.

Which values keys can have is not asked again: it does not depend on where they lie. Then sidecars
of keys there: who reads, writes and deletes them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from tests.support.object_stores import ObjectStore
from tests.support.store_faults import maintained_a_day_later
from tests.support.store_proxy import Request, StoreProxy, store_proxy
from tests.support.waiting import HANGS_S

from pgsluice import failpoints
from pgsluice.changes.net import NetChanges
from pgsluice.errors import TargetUnreachable
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.lake.keys.index import KeyIndex
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.contract import Folder
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_changes import ChangesContract
from pgsluice.testing.sink_columns import ColumnsContract
from pgsluice.testing.sink_copies import CopiesContract
from pgsluice.testing.sink_deleted import DeletedRowsContract
from pgsluice.testing.sink_history import HistoryContract
from pgsluice.testing.sink_log import LogContract
from pgsluice.testing.sink_staged_changes import StagedChangesContract
from pgsluice.testing.sink_staging import StagingContract
from pgsluice.testing.sink_tests import SCHEMA, TABLE, changes, identity, net, row
from pgsluice.testing.sink_whole_rows import WholeRowsContract


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
class TestContract(
    CopiesContract,
    ChangesContract,
    ColumnsContract,
    StagingContract,
    StagedChangesContract,
    LogContract,
    DeletedRowsContract,
    HistoryContract,
    WholeRowsContract,
):
    @pytest.fixture
    def sink(self, merge: Any, s3_store: ObjectStore, tmp_path: Path) -> Sink:
        return DeltaSink(
            f"s3://lake/{uuid.uuid4()}/{{schema}}/{{table}}",
            merge=merge,
            cache_dir=f"{tmp_path}/keys",
            storage_options=s3_store.options,
        )

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        assert isinstance(sink, DeltaSink)
        location = sink.location(table.namespace, table.name)
        scan = DeltaTable(location, storage_options=sink.storage_options).scan()
        return pa.RecordBatchReader.from_stream(scan).read_all().to_pylist()


ROWS = 60_000
"""Of a file that is large enough for a sidecar in the store."""


class Executors:
    """A table in a store, and executors that share nothing else."""

    def __init__(self, store: ObjectStore, folder: Path, stack: ExitStack) -> None:
        self._store, self._folder, self._stack = store, folder, stack
        self.url = f"s3://lake/{uuid.uuid4()}"

    def new(self) -> tuple[Callable[[], TableWriter], StoreProxy]:
        """An executor that knows nothing of the table: its cache is empty, and what this process
        knows has another endpoint. A writer for each batch, and the proxy before the store."""
        proxy = self._stack.enter_context(store_proxy(self._store.endpoint))
        sink = DeltaSink(
            f"{self.url}/{{schema}}/{{table}}",
            merge="on_read",
            cache_dir=f"{self._folder}/{uuid.uuid4()}",
            storage_options=self._store.at(proxy.endpoint),
        )
        return lambda: TableWriter(sink, TABLE, identity()), proxy

    @property
    def folder(self) -> Folder:
        """The table's."""
        return DeltaSink(
            f"{self.url}/{{schema}}/{{table}}", storage_options=self._store.options
        ).folder("public", "t")

    def delta(self) -> DeltaTable:
        return DeltaTable(self.folder.uri, storage_options=self._store.options)

    def names(self, under: str = "") -> list[str]:
        """The objects directly in a folder of the table."""
        return [stored.name for stored in self.folder.entries(under)]


@pytest.fixture
def executors(s3_store: ObjectStore, tmp_path: Path) -> Iterator[Executors]:
    with ExitStack() as stack:
        yield Executors(s3_store, tmp_path, stack)


@pytest.fixture
def copied(executors: Executors) -> Executors:
    """The table, with two files of copied rows."""
    writer, _ = executors.new()
    staged = [writer().stage_load([rows_from(first)], Lsn(100)) for first in (0, ROWS)]
    writer().commit_load(staged, Lsn(100))
    return executors


def rows_from(first: int) -> pa.RecordBatch:
    random = np.random.default_rng(first)
    texts = pa.array(random.integers(0, 2**62, ROWS)).cast(pa.string())
    big = pc.binary_join_element_wise(texts, texts.take(random.permutation(ROWS)), "")
    ids = pa.array(np.arange(first, first + ROWS))
    return pa.record_batch([ids, pa.array(np.zeros(ROWS, np.int32)), big], schema=SCHEMA)


def updated(*ids: int) -> NetChanges:
    t = changes()
    for number in ids:
        t.update(row(number, 1))
    return net(t)


def large_batch() -> ChangesBuilder:
    """So many inserts that their file gets a sidecar in the store."""
    t = changes()
    for values in rows_from(2 * ROWS).to_pylist():
        t.insert(values)
    return t


def data_files_read(proxy: StoreProxy) -> list[str]:
    """Those that an executor has read."""
    return [
        request.path
        for request in proxy.requests
        if request.method == "GET" and "/part-" in request.path and "/_keys/" not in request.path
    ]


IDS = (5, ROWS - 1, ROWS, 2 * ROWS - 1)


def assert_updated(executors: Executors) -> None:
    rows = pl.from_arrow(pa.RecordBatchReader.from_stream(executors.delta().scan()).read_all())
    assert isinstance(rows, pl.DataFrame)
    assert len(rows) == 2 * ROWS
    assert rows.filter(pl.col("a") == 1)["id"].sort().to_list() == list(IDS)


def test_an_executor_without_a_cache_reads_sidecars_instead_of_data_files(
    copied: Executors,
) -> None:
    writer, proxy = copied.new()
    applied = writer().apply(updated(*IDS), Lsn(200))
    assert applied.rows_updated == len(IDS)
    assert not data_files_read(proxy)
    assert sum(request.path.endswith(".keys") for request in proxy.requests) == 2
    assert_updated(copied)


def test_an_executor_without_a_cache_asks_for_several_things_at_a_time(copied: Executors) -> None:
    """The store answers no commit before it is asked for three, and no sidecar before it is asked
    for both. The vectors of both data files are one request."""
    known, _ = copied.new()
    for position in (200, 300, 400):
        known().apply(updated(1, 2 * ROWS - 2), Lsn(position))
    executor, proxy = copied.new()
    commits, sidecars = threading.Barrier(3), threading.Barrier(2)

    def meet(request: Request) -> None:
        if request.method == "GET" and request.path.endswith(
            (".keys", "1.json", "2.json", "3.json")
        ):
            (sidecars if request.path.endswith(".keys") else commits).wait(HANGS_S)

    proxy.choose = meet
    assert executor().apply(updated(*IDS), Lsn(500)).rows_updated == len(IDS)
    read = [request.path for request in proxy.requests if request.method == "GET"]
    assert sum("/_dv/" in path for path in read) == 1


def _of_other_columns(folder: Folder, name: str, _: bytes, tmp_path: Path) -> None:
    keys = pa.table({"a": pa.array(np.arange(ROWS, dtype=np.int32))})
    index = KeyIndex(f"{tmp_path}/other", folder, keys.schema)
    index.add(DataFile(name.removeprefix("_keys/").removesuffix(".keys"), 2**30), keys)


def _with_content(change: Callable[[bytes], bytes]) -> Callable[..., None]:
    def replace(folder: Folder, name: str, content: bytes, _: Path) -> None:
        with folder.write(name) as stream:
            stream.write(change(content))

    return replace


DAMAGES: dict[str, Callable[..., None]] = {
    "is missing": lambda folder, name, *_: folder.delete(name),
    "is torn": _with_content(lambda content: content[:-100]),
    "has other bytes": _with_content(lambda content: content[:5000] + b"?" + content[5001:]),
    "is empty": _with_content(lambda _: b""),
    "has zeros": _with_content(lambda content: bytes(len(content))),
    "is of other columns": _of_other_columns,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_data_file_is_read_if_its_sidecar(copied: Executors, damage: str, tmp_path: Path) -> None:
    folder = copied.folder
    bad, _ = copied.names("_keys/")
    DAMAGES[damage](folder, bad, folder.read(bad), tmp_path)
    folder.settle()
    writer, proxy = copied.new()
    assert writer().apply(updated(*IDS), Lsn(200)).rows_updated == len(IDS)
    data_file = bad.removeprefix("_keys/").removesuffix(".keys")
    assert [path.rpartition("/")[2] for path in data_files_read(proxy)] == [data_file]
    assert_updated(copied)


def test_a_data_file_is_read_if_its_sidecar_is_another_ones(copied: Executors) -> None:
    folder = copied.folder
    first, second = copied.names("_keys/")
    with folder.write(first) as stream:
        stream.write(folder.read(second))
    folder.settle()
    writer, proxy = copied.new()
    assert writer().apply(updated(*IDS), Lsn(200)).rows_updated == len(IDS)
    assert len(data_files_read(proxy)) == 1
    assert_updated(copied)


def test_a_sidecar_is_uploaded_beside_its_data_file_and_the_vectors(copied: Executors) -> None:
    """A large batch: the store answers none of the three before it has got all of them."""
    writer, proxy = copied.new()
    writer().apply(updated(*IDS), Lsn(200))  # it has read what the next one needs
    proxy.requests.clear()
    together = threading.Barrier(3)

    def meet(request: Request) -> None:
        if request.method == "PUT" and "_delta_log" not in request.path:
            together.wait(HANGS_S)

    proxy.choose = meet
    some = large_batch()
    some.update(row(0, 1))
    assert writer().apply(net(some), Lsn(300)).rows_inserted == ROWS
    methods = [request.method for request in proxy.requests]
    assert methods == ["GET", "PUT", "PUT", "PUT", "PUT"]
    assert "_delta_log" in proxy.requests[-1].path
    assert len(copied.names("_keys/")) == 3


def test_a_small_batch_has_no_sidecar_in_the_store(copied: Executors) -> None:
    writer, proxy = copied.new()
    writer().apply(updated(*IDS), Lsn(200))
    proxy.requests.clear()
    writer().apply(updated(*IDS[:2]), Lsn(300))
    assert [request.method for request in proxy.requests] == ["GET", "PUT", "PUT", "PUT"]
    assert len(copied.names("_keys/")) == 2


def test_sidecars_go_with_their_data_files(
    copied: Executors, s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch rewrites one of the files, and a killed attempt has left a sidecar."""
    writer, _ = copied.new()
    writer().apply(updated(*range(ROWS // 2)), Lsn(200))
    with copied.folder.write("_keys/part-of-a-killed-attempt.parquet.keys") as stream:
        stream.write(b"keys")
    copied.folder.settle()
    copied.delta().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(copied.names("_keys/")) == 4
    assert maintained_a_day_later(copied.url, s3_store, ["public/t"], monkeypatch) == []
    live = [name for name in copied.names() if name.endswith(".parquet")]
    assert copied.names("_keys/") == sorted(f"_keys/{name}.keys" for name in live)
    writer, proxy = copied.new()
    writer().apply(updated(ROWS // 2), Lsn(300))
    assert not data_files_read(proxy)


def test_a_failed_attempt_deletes_its_sidecar(copied: Executors) -> None:
    before = copied.names("_keys/")
    writer, _ = copied.new()
    failpoints.arm("delta.before_commit=eio")
    try:
        with pytest.raises(TargetUnreachable):
            writer().apply(net(large_batch()), Lsn(200))
    finally:
        failpoints.arm("")
    assert copied.names("_keys/") == before
