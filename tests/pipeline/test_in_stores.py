"""The whole way into tables in an object store: copies, changes, a large transaction, kills."""

from __future__ import annotations

import signal
from pathlib import Path

import polars as pl
import pytest
from tests.sinks.delta_duckdb import duckdb_rows
from tests.support.children import Child
from tests.support.databases import MakeDatabase
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import use_local_spark
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline
from tests.support.verifying import verify
from tests.support.waiting import HANGS_S

from pgsluice import failpoints
from pgsluice.config import load_config
from pgsluice.subscription.running.run import run

ROWS = 20_000


def run_until(config: Path, failpoint: str) -> None:
    """A run in a process that is killed at a failpoint; its tasks are in the process, too."""
    use_local_spark(pytest.MonkeyPatch())
    failpoints.arm(f"{failpoint}=kill")
    run(load_config(config), once=True)


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
        assert Child(run_until, one.path, failpoint).wait(HANGS_S) == -signal.SIGKILL
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
