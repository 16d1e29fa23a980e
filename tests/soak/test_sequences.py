"""Sequences of statements, drawn: silent differences between statements that are right alone.

``PGSLUICE_SEQUENCES`` says how many there are on columns on 18 (10,000), at all moments together;
on partitions and on publications there are a fifth of it, on 16, 14 and 12 a tenth.
``PGSLUICE_SEQUENCES_FROM`` is the number of each moment's first one: with the seed and ``-k`` for
the moment, the rest of a run that was cut off can be run, or one sequence. Tasks run in this
process, unless ``PGSLUICE_SOAK_ENGINE=spark``; a few sequences have Spark anyway.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import pytest
from tests.soak import partition_sequences as partitions
from tests.soak import publication_sequences as publications
from tests.soak.report import WITHOUT_SPARK, Report
from tests.soak.test_ddl import failover as failover
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.ddl.promotion import FailoverDatabase
from tests.support.ddl.row import FIRST_COPIES, Moment
from tests.support.pipeline import MakePipeline
from tests.support.sequences import columns
from tests.support.sequences.running import Tally, Verdict, render, run_drawn, shrink
from tests.support.sequences.sequence import Draw, Drawn, moments

pytestmark = pytest.mark.soak

COUNT = int(os.environ.get("PGSLUICE_SEQUENCES", "10000"))
FIRST = int(os.environ.get("PGSLUICE_SEQUENCES_FROM", "0"))
IS_WHOLE = not os.environ.keys() & {"PGSLUICE_SEQUENCES", "PGSLUICE_SEQUENCES_FROM"}
AT_ONCE = 250
WITH_SPARK = 100
MOST_COPIED = 0.1
AREAS: dict[str, tuple[Draw, float]] = {
    "columns": (columns.draw, 1),
    "columns without a key": (columns.draw_keyless, 0.2),
    "partitions": (partitions.draw, 0.2),
    "publications": (publications.draw, 0.2),
}
"""What sequences are on -> how they are drawn, and how many, by those on columns."""
OLDER = (16, 14, 12)

MakeSource = Callable[[Moment, int], Database]


@pytest.fixture
def make_source(
    servers: Servers, database: MakeDatabase, failover: Callable[[int], FailoverDatabase]
) -> MakeSource:
    """A fresh database of a version, with a standby where the moment needs one."""

    def make(moment: Moment, version: int) -> Database:
        promotes = moment in (Moment.PROMOTION, Moment.LOST)
        return failover(version) if promotes else database(servers(version))

    return make


@pytest.fixture
def engine_of_sequences(request: pytest.FixtureRequest) -> None:
    """Tasks in this process, unless the environment names Spark."""
    is_spark = os.environ.get("PGSLUICE_SOAK_ENGINE") == "spark"
    request.getfixturevalue("spark" if is_spark else "local_spark")


class Sequences:
    """Runs sequences of one area on one version, and judges them.

    Attributes:
        failed: as they are printed, each as small as it could be made.
    """

    def __init__(
        self, area: str, version: int, seed: int, pipeline: MakePipeline, source: MakeSource
    ) -> None:
        self.draw = AREAS[area][0]
        self.version = version
        self.seed = seed
        self.pipeline = pipeline
        self.source = source
        self.tally = Tally()
        self.failed: list[str] = []

    def run(self, moment: Moment, count: int) -> None:
        """So many at a moment, some hundreds at once."""
        numbers = range(FIRST, FIRST + count)
        drawn = [self.draw(self.seed, number, moment, self.version) for number in numbers]
        for first in range(0, count, AT_ONCE):
            self._batch(drawn[first : first + AT_ONCE], moment)

    def _batch(self, drawn: Sequence[Drawn], moment: Moment) -> None:
        def run(some: Sequence[Drawn]) -> list[Verdict]:
            source = partial(self.source, moment, self.version)
            return run_drawn(self.pipeline, source, some, moment)

        verdicts = run(drawn)
        self.tally.add(verdicts, moment)
        if failed := [one for one in verdicts if one.fault is not None]:
            # Shrinking takes a while, and may be cut off.
            sys.stdout.writelines(f"\n{one.drawn.name}: {one.seen}" for one in failed)
            sys.stdout.flush()
            try:
                failed = shrink(run, failed)
            except pytest.fail.Exception as stuck:  # a part alone may never settle
                sys.stdout.write(f"\nas they were drawn: {str(stuck)[:500]}")
            found = [render(one, moment, self.version) for one in failed]
            self.failed += found
            sys.stdout.write("\n" + "\n".join(found))
        sys.stdout.flush()

    def check(self, line: dict[str, str]) -> None:
        """Fill in the page's line; fail if a sequence did."""
        sys.stdout.write(f"\n{self.tally}\n")
        line["figures"], line["shown"] = self.tally.figures, self.tally.shown
        assert not self.failed, "\n".join(self.failed)
        assert not self.tally.is_above(MOST_COPIED), str(self.tally)


@pytest.mark.parametrize("moment", moments(18), ids=lambda moment: moment.name.lower())
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.usefixtures("engine_of_sequences")
def test_sequences(
    area: str,
    moment: Moment,
    pipeline: MakePipeline,
    make_source: MakeSource,
    seed: int,
    report: Report,
) -> None:
    if area == "publications" and moment in FIRST_COPIES:
        pytest.skip("a run knows the server's publications from its start")
    one = Sequences(area, 18, seed, pipeline, make_source)
    with row(report, f"{area}, {moment.value}, PostgreSQL 18", seed) as line:
        one.run(moment, count(area, 18))
        one.check(line)


@pytest.mark.parametrize("version", OLDER, ids="pg{}".format)
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.usefixtures("engine_of_sequences")
def test_sequences_on_older_servers(
    area: str,
    version: int,
    pipeline: MakePipeline,
    make_source: MakeSource,
    seed: int,
    report: Report,
) -> None:
    one = Sequences(area, version, seed, pipeline, make_source)
    with row(
        report, f"{area}, at {len(moments(version))} moments, PostgreSQL {version}", seed
    ) as line:
        for moment in moments(version):
            if area == "publications" and moment in FIRST_COPIES:
                continue
            one.run(moment, count(area, version))
        one.check(line)


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.usefixtures("spark")
def test_sequences_with_spark(
    area: str, pipeline: MakePipeline, make_source: MakeSource, seed: int, report: Report
) -> None:
    one = Sequences(area, 18, seed, pipeline, make_source)
    what = f"{area}, {Moment.ONE_POLL.value}, PostgreSQL 18"
    with Report(report.area, report.page).row(what, seed) as line:
        one.run(Moment.ONE_POLL, WITH_SPARK)
        one.check(line)


def count(area: str, version: int) -> int:
    """How many at each moment."""
    share = AREAS[area][1] * (1 if version == 18 else 0.1)
    return max(1, round(COUNT * share / len(moments(18))))


def row(report: Report, what: str, seed: int):
    """A row of the page, where all sequences run."""
    without = Report(report.area, report.page, WITHOUT_SPARK)
    return without.row(what, seed) if IS_WHOLE else nullcontext({})
