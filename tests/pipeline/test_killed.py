"""Processes of a run that somebody kills: a line names each, and everything goes on.

Of capture and of the JVM, tests/pipeline/test_independent.py tells; of a snapshot's keeper,
tests/pipeline/test_copies_disturbed.py.
"""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest
from deltalake.exceptions import TableNotFoundError
from tests.pipeline.test_independent import stopped_copy, waiting_copy
from tests.support.databases import Database, MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline


class KilledRun:
    """A run whose processes are killed, one after the other; table ``t`` gets rows meanwhile."""

    def __init__(self, one: Pipeline, shop: Database) -> None:
        self._one = one
        self._shop = shop
        self._run = psutil.Process(one.start("run", **waiting_copy(one, "large")).pid)
        self._rows = 0

    def find(self, words: str, among: psutil.Process | None = None) -> psutil.Process:
        """The process of the run that has these words in its command line, once it is there."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            for child in (among or self._run).children(recursive=among is None):
                with suppress(psutil.Error):
                    if child.name() != "java" and words in " ".join(child.cmdline()):
                        found.append(child)
            return bool(found)

        self._one.wait_until(is_there, why=f"{words} runs")
        return found[0]

    @property
    def daemon(self) -> psutil.Process:
        """The daemon of Spark's Python workers, whose children the workers are."""
        return self.find("pgsluice.subscription.running.daemon", self._run)

    def says(self, words: str) -> None:
        """Wait for words in a line."""
        self._one.wait_until(lambda: words in self._one.log(), why=words)

    def goes_on(self) -> None:
        """What is inserted now comes to the target."""
        self._rows += 1
        self._shop.execute(f"INSERT INTO t VALUES ({self._rows})")

        def is_applied() -> bool:
            with suppress(TableNotFoundError):
                return self._rows in self._one.delta("t").to_pyarrow_table()["id"].to_pylist()
            return False

        self._one.wait_until(is_applied, why="the row is applied")


@pytest.mark.xdist_group("processes")
def test_what_is_killed_is_named_and_everything_goes_on(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i",
    )
    one = pipeline(shop)
    run = KilledRun(one, shop)

    with stopped_copy(one, shop, "large"):  # by a worker, which waits for the server
        for worker in run.daemon.children():
            worker.kill()
        lost = "Spark lost a worker and retries its tasks: copy public.large (Python worker exited"
    run.says(lost)
    run.goes_on()

    daemon = run.daemon
    daemon.kill()
    run.says(
        f"the daemon of Spark's Python workers (process {daemon.pid}) has ended by SIGKILL: Spark "
        "starts another one"
    )
    run.goes_on()

    one.wait_applied()
    one.assert_equal("t", "large")
    assert "Traceback" not in one.log(), one.log()
