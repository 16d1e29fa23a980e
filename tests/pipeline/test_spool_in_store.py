"""The whole way with the spool in an object store: machines, kills, lost folders, faults."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from tests.support.children import Child
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import use_local_spark
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline
from tests.support.waiting import HANGS_S

from pgsluice import failpoints
from pgsluice.config import load_config
from pgsluice.subscription.running.run import run


def run_until(config: Path, failpoint: str) -> None:
    """A run in a process that is killed at a failpoint; its tasks are in the process, too."""
    use_local_spark(pytest.MonkeyPatch())
    failpoints.arm(f"{failpoint}=kill")
    run(load_config(config), once=True)


@pytest.mark.usefixtures("local_spark")
def test_tables_equal_the_source_whoever_is_killed_and_whatever_folder_is_lost(
    s3_store: ObjectStore, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    one.have_spool_in_store(s3_store)
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    shop.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 1000) i")
    one.once()
    one.assert_equal("t")
    for number, failpoint in enumerate(("record.before_put", "record.after_put")):
        shop.execute(f"UPDATE t SET a = '{number}' WHERE id % 7 = {number}")
        assert Child(run_until, one.path, failpoint).wait(HANGS_S) == -signal.SIGKILL
        if number:
            shutil.rmtree(one.folder / "state")
    copies = one.table("t").copy_number
    shop.execute("DELETE FROM t WHERE id > 900")
    one.once()
    one.assert_equal("t")
    assert one.table("t").copy_number == copies, "the record in the store knows the table"
    assert not one.spool.exists()
