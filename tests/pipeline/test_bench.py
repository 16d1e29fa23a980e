"""pgbench's TPC-B while ``pgsluice run`` replicates, and the same under fire."""

from __future__ import annotations

import random

import pytest
from tests.support.databases import MakeDatabase
from tests.support.pgbench import TABLES, bench, fire, initialise
from tests.support.pipeline import MakePipeline


@pytest.mark.xdist_group("processes")
def test_pgbench_equals_row_for_row(database: MakeDatabase, pipeline: MakePipeline) -> None:
    shop = database()
    initialise(shop)
    one = pipeline(shop)
    one.start()
    running = bench(shop, seconds=8)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    one.wait_applied()
    one.assert_equal(*TABLES)
    process = one.processes[0]
    one.stop()
    assert process.returncode == 143


@pytest.mark.xdist_group("processes")
def test_pgbench_under_fire(database: MakeDatabase, pipeline: MakePipeline) -> None:
    shop = database()
    initialise(shop)
    fire(pipeline(shop), seconds=12, kills=3, seed=random.randrange(10**6))
