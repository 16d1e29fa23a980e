"""Two hundred sequences of statements on columns in one run; some in change logs and histories.

``make soak AREA=sequences`` has thousands, at all moments, and ``AREA=modes`` two thousand.
"""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.ddl.row import Moment
from tests.support.every_mode import OTHER_MODES
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.sequences import columns
from tests.support.sequences.running import render, run_drawn

from pgsluice.embedded import EmbeddedServer

COUNT = 200
IN_OTHER_MODES = 8
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


@pytest.mark.usefixtures("local_spark")
@pytest.mark.pg(">= 12")
@pytest.mark.parametrize("mode", ["log", "history"])
def test_sequences_in_other_modes(
    server: EmbeddedServer,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    monkeypatch.setattr(Pipeline, "subscription_options", OTHER_MODES[mode])
    version, moment = server.programs.major, Moment.TRANSACTION
    drawn = [columns.draw(SEED, number, moment, version) for number in range(IN_OTHER_MODES)]
    verdicts = run_drawn(pipeline, database, drawn, moment)
    failed = [render(one, moment, version) for one in verdicts if one.seen.differences]
    assert not failed, "\n".join(failed)
