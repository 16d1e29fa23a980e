"""A task may be attempted twice at once, and once more late: the target has one commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.capture import run_capture
from pgsluice.errors import Failure, Remedy
from pgsluice.lsn import Lsn
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import SpoolReader, find_record
from pgsluice.subscription.base.options import sink_options, table_options
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.planning import plan_tables
from pgsluice.subscription.batches.tasks.apply import ApplyTables

pytestmark = pytest.mark.usefixtures("spark")


def received(one: Pipeline, *statements: str) -> Lsn:
    """What the statements did is in the spool, and not applied; the spool's position."""
    one.database.execute(*statements)
    run_capture(one.config, once=True)
    return SpoolReader(one.spool).position()


def planned(one: Pipeline, end: Lsn) -> TableWork:
    """The one table's work up to a position, as the source hands it to a task."""
    record = find_record(one.spool, "lake")
    (work,) = plan_tables(SpoolReader(one.spool), record, end)
    return work


def attempted(one: Pipeline, work: TableWork) -> TaskResult | Failure:
    """What a task does, with handles of its own."""
    subscription = one.config.subscription("lake")
    task = ApplyTables(
        str(one.spool),
        SpoolReader(one.spool).spool.identity.spool_id,
        sink_options(subscription),
        table_options(subscription),
        keep_versions={},
    )
    return attempt(task.run, work)


def test_attempted_twice_at_once_and_once_more_late(
    database: MakeDatabase, pipeline: MakePipeline, tmp_path: Path
) -> None:
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 500) i",
    )
    one.once()
    early = received(one, "UPDATE t SET n = n + 1 WHERE id <= 100", "INSERT INTO t VALUES (501, 0)")
    end = received(one, "UPDATE t SET id = id + 1000 WHERE id <= 50", "DELETE FROM t WHERE id = 60")
    work, older = planned(one, end), planned(one, early)
    assert older.through < work.through
    version = one.delta("t").version()

    for expected in (1, 1):  # the second time all of them come late
        barrier = Barrier(3)

        def at_once(_: int, barrier: Barrier = barrier) -> TaskResult | Failure:
            barrier.wait()
            return attempted(one, work)

        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(at_once, range(3)))
        for result in results:
            # A loser either finds the work done, or is asked to look again.
            if isinstance(result, Failure):
                assert result.remedy is Remedy.RETRY, result
                assert "pgsluice retries the changes" in result.message
        assert any(isinstance(result, TaskResult) for result in results)
        assert one.delta("t").version() == version + expected
        one.assert_equal("t")

    assert attempted(one, older).skipped
    # Also one that knows of no commit at all.
    assert attempted(one, replace(older, committed=Lsn(0), after=older.after)).skipped
    # And one of a copy that has been made again since.
    stale = attempted(one, replace(work, copy_number=0))
    assert isinstance(stale, Failure) or stale.skipped
    assert one.delta("t").version() == version + 1
    one.assert_equal("t")

    # The run's own batch finds the work done, whatever the record knew.
    one.once()
    assert one.delta("t").version() == version + 1
    assert one.table("t").committed == end
