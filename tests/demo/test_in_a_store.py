"""The demo with ``--store``: its configuration, its store and its proof, without Spark's JVM.

``make soak AREA=stores`` has the whole command.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.children import Child
from tests.support.local_spark import local_spark as local_spark
from tests.support.waiting import HANGS_S, await_that

from pgsluice.demo.shop import TABLES
from pgsluice.demo.show import prove
from pgsluice.demo.stage import Stage
from pgsluice.embedded.object_store import EmbeddedStore, answers
from pgsluice.errors import ConfigError
from pgsluice.subscription.running.run import run


def start_store() -> Stage:
    """A stage with its store; skips if that cannot be installed here."""
    stage = Stage(None, keep=False, has_store=True)
    try:
        stage.start_store()
    except ConfigError as error:
        with stage:
            pytest.skip(str(error))
    return stage


@pytest.mark.usefixtures("local_spark")
def test_all_tables_are_equal() -> None:
    with start_store() as stage:
        workload = stage.start_server()
        workload.large_rows = 500
        workload.create()
        workload.seed_rows(customers=50, orders=50, page_views=50)
        config = stage.write_config()
        assert 'path = "s3://lake/{schema}/{table}"' in stage.config_path.read_text()
        run(config, once=True)
        workload.run(0.0)
        run(config, once=True)
        comparisons = prove(stage)
        assert [comparison.table for comparison in comparisons] == [*TABLES]
        assert all(comparison.equal for comparison in comparisons)
        assert not stage.lake.exists()
    assert not stage.folder.exists()


def killed_with_a_store(folder: Path) -> None:
    store = EmbeddedStore(folder)
    (folder / "port").write_text(store.endpoint.rpartition(":")[2])
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_store_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    start_store().__exit__()  # installed, or skipped
    assert Child(killed_with_a_store, tmp_path).wait(HANGS_S) == -signal.SIGKILL
    port = int((tmp_path / "port").read_text())
    await_that(lambda: not answers(port), "the store has ended")
