"""pgbench's TPC-B while ``pgsluice run`` replicates, and the same under fire."""

from __future__ import annotations

import random

import pytest
from tests.support.databases import MakeDatabase, Servers
from tests.support.pgbench import TABLES, bench, fire, initialise
from tests.support.pipeline import MakePipeline


@pytest.mark.parametrize("version", [18, 16])
@pytest.mark.xdist_group("processes")
def test_pgbench_equals_row_for_row(
    version: int, servers: Servers, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database(servers(version))
    initialise(shop)
    one = pipeline(shop)
    one.start()
    running = bench(shop, seconds=20)
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
