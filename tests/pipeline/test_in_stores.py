"""The whole way into tables in an object store: copies, changes, a large transaction, kills."""

from __future__ import annotations

import signal

import polars as pl
import pytest
from tests.sinks.delta_duckdb import duckdb_rows
from tests.support.databases import MakeDatabase
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import run_killed_at
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.store_proxy import store_proxy
from tests.support.verifying import verify
from tests.support.waiting import await_that

from pgsluice.sinks.delta.config import DeltaSinkConfig
from pgsluice.stores.places import folder_at

ROWS = 20_000


@pytest.mark.usefixtures("local_spark")
def test_tables_in_a_store_equal_the_source_whoever_is_killed(
    s3_store: ObjectStore,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run is killed before its files are sent, before its commit, and after it. A large
    transaction is staged in shares. Spark is left out: ``make soak AREA=stores`` has it.
    """
    monkeypatch.setattr("pgsluice.subscription.batches.tasks.large_batch.LARGE_BYTES", 2**20)
    monkeypatch.setattr("pgsluice.subscription.batches.tasks.large_batch.PIECE_BYTES", 2**19)
    one = pipeline(shop := database())
    one.sink_options = ', merge = "on_read"'
    one.have_store(s3_store)
    assert replicate(one, ROWS, segment_bytes=2**18) < CAPTURE_BYTES
    for number, failpoint in enumerate(
        ("store.upload", "delta.before_commit", "delta.after_commit")
    ):
        shop.execute(f"UPDATE t SET a = {number} WHERE id BETWEEN 2 AND 20")
        assert run_killed_at(one.path, failpoint) == -signal.SIGKILL
    one.once()
    one.assert_equal("t", "other")
    code, results = verify(one, capsys)
    assert code == 0
    assert {name for name in results if results[name]["equal"]} == {"public.t", "public.other"}
    location, options = one.target("t"), one.reading_options
    ((rows, total),) = shop.execute("SELECT count(*), sum(a) FROM t")
    table = pl.read_delta(location, storage_options=options)
    assert (len(table), table["a"].sum()) == (rows, total)
    found = duckdb_rows(one.target("other"), options)
    assert found == [{"id": 1}]
    assert not one.lake.exists(), "nothing is on the disk"


@pytest.mark.usefixtures("local_spark")
def test_a_merge_that_is_overwritten_below_a_compaction_leads_to_a_copy(
    s3_store: ObjectStore,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compacted file has the merge's rows, so to apply its changes again would double them."""
    monkeypatch.setattr(DeltaSinkConfig, "confirms_after_s", 60.0)
    one = pipeline(shop := database())
    one.sink_options = ', merge = "on_read"'
    one.have_store(s3_store)
    one.write("apply_interval_s = 0", spool='retention = "180s"')
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i",
    )
    one.once()
    number, copies = 1000, one.table("t").copy_number
    while one.delta("t").history(1)[0]["operation"] != "OPTIMIZE":
        number += 1
        shop.execute(f"INSERT INTO t VALUES ({number}, 1)", "UPDATE t SET n = n + 1 WHERE id < 9")
        one.once()
    name = f"{one.target('t')}/_delta_log/{one.table('t').version:020}.json"
    other = (
        b'{"commitInfo": {"timestamp": 0, "operation": "OPTIMIZE", "operationParameters": {}}}\n'
    )
    folder, _, file = name.rpartition("/")
    there = folder_at(folder, s3_store.options)
    stored = there.stat(file)
    assert stored is not None
    there.replace(file, other, stored.tag)
    shop.execute("UPDATE t SET n = 7 WHERE id = 7")
    one.once()
    one.assert_equal("t")
    assert one.table("t").copy_number == copies + 1


@pytest.mark.usefixtures("local_spark")
def test_a_table_without_changes_costs_no_request(
    s3_store: ObjectStore,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While another table has batches. Its last commits are read once, which is later here."""
    monkeypatch.setattr(DeltaSinkConfig, "confirms_after_s", 3600.0)
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE quiet (id int PRIMARY KEY)", "CREATE TABLE busy (id int PRIMARY KEY)"
    )
    with store_proxy(s3_store.endpoint) as proxy:
        one.have_store(s3_store, proxy.endpoint)
        one.write("apply_interval_s = 0")
        with one.live():
            one.wait_applied()
            shop.execute("INSERT INTO quiet VALUES (1)", "INSERT INTO busy VALUES (1)")
            await_that(lambda: _count(one, "busy") == _count(one, "quiet") == 1)
            one.wait_until(lambda: one.table("quiet").version > 0, why="the record has its commit")
            proxy.requests.clear()
            for number in range(2, 5):
                shop.execute(f"INSERT INTO busy VALUES ({number})")
                await_that(lambda number=number: _count(one, "busy") == number)
            paths = [request.path for request in proxy.requests]
    assert any("/busy/" in path for path in paths)
    assert not [path for path in paths if "/quiet/" in path]
    one.assert_equal("quiet", "busy")


def _count(one: Pipeline, table: str) -> int:
    return int(one.delta(table).to_pyarrow_table().num_rows)
