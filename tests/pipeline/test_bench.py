"""pgbench's TPC-B while ``pgsluice run`` replicates and its processes are killed."""

from __future__ import annotations

import random

import pytest
from tests.support.databases import MakeDatabase
from tests.support.pgbench import fire, initialise
from tests.support.pipeline import MakePipeline


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.xdist_group("processes")
def test_pgbench_under_fire(database: MakeDatabase, pipeline: MakePipeline) -> None:
    shop = database()
    initialise(shop, scale=1)
    fire(pipeline(shop), seconds=8, kills=3, seed=random.randrange(10**6))
