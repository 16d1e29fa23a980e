"""Two hundred sequences of statements on columns, in one run.

``make soak AREA=sequences`` has thousands, at all moments.
"""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.ddl.row import Moment
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline
from tests.support.sequences import columns
from tests.support.sequences.running import render, run_drawn

from pgsluice.embedded import EmbeddedServer

COUNT = 200
SEED = 1


@pytest.mark.usefixtures("local_spark")
@pytest.mark.pg(">= 12")
def test_sequences_on_columns(
    server: EmbeddedServer, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    version = server.programs.major
    drawn = [columns.draw(SEED, number, Moment.STOPPED, version) for number in range(COUNT)]
    verdicts = run_drawn(pipeline, database, drawn, Moment.STOPPED)
    failed = [render(one, Moment.STOPPED, version) for one in verdicts if one.fault is not None]
    assert not failed, "\n".join(failed)
