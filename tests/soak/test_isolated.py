"""A cluster whose executors see no file of the driver: a store is all that they share.

A standalone master, and two workers, each in its own mount namespace with empty file systems over
every folder that the driver writes. Mounting needs root. ``PGSLUICE_SPARK_PYTHON`` names the Python
of an environment with another PySpark, for the stories.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.soak.chaos.fire import fight, make_tables
from tests.soak.chaos.modes import MODES
from tests.soak.report import Report
from tests.soak.sparks.events import event_log, executors_of_jobs
from tests.soak.sparks.isolated import DRIVER, capture_apart, hidden_folders, on_cluster
from tests.soak.sparks.standalone import Standalone, standalone
from tests.soak.sparks.story import LARGE, SparkStory, some_changes
from tests.support.databases import Database, MakeDatabase
from tests.support.object_stores import ObjectStore
from tests.support.pgbench import fire, initialise
from tests.support.pipeline import MakePipeline
from tests.support.waiting import SOAK_HANGS_S, await_that

from pgsluice.embedded import EmbeddedServer

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems"),
]
PYTHON = Path(os.environ.get("PGSLUICE_SPARK_PYTHON", sys.executable))
IS_OWN = str(PYTHON) == sys.executable
OWN_SPARK = pytest.mark.skipif(not IS_OWN, reason="runs in this process's environment")
SECONDS = 60
KILLS = 6
_LARGE_ROWS = 500_000
_TABLES = 200
_THREE_SEEDS = pytest.mark.parametrize("number", [1, 2, 3])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """Two workers that see neither temporary files nor caches, and are started again."""
    hidden = hidden_folders()
    with standalone(PYTHON, tmp_path, workers=2, hidden=hidden, restarts=True) as running:
        yield running


def test_a_spool_on_a_disk_is_said_to_be_invisible(
    cluster: Standalone, database: MakeDatabase, tmp_path: Path, report: Report, seed: int
) -> None:
    what = f"a spool on a disk that executors do not see{_spark()}"
    with report.row(what, seed) as row:
        settings = {"spark.master": cluster.url, **DRIVER}
        story = SparkStory(
            PYTHON, tmp_path, database(), settings, {"path": "spool", "shared": True}
        )
        story.fill()
        checked = story.call("check", fails=True)
        for subject in ("spool", 'target of "lake"'):
            assert f"{subject}: does not see the driver's" in checked
        ended = story.call("run", "--once", fails=True)
        row["figures"] = "check and run end with 1"
        assert "does not see the driver's folder" in ended
        row["shown"] = "both name the executor's host and the folder"


def test_the_story_with_a_spool_in_a_store(
    cluster: Standalone,
    database: MakeDatabase,
    tmp_path: Path,
    s3_store: ObjectStore,
    report: Report,
    seed: int,
) -> None:
    with report.row(f"spool and targets in a store, isolated workers{_spark()}", seed) as row:
        shop = database()
        story = SparkStory(
            PYTHON,
            tmp_path,
            shop,
            {"spark.master": cluster.url, **DRIVER, **event_log(tmp_path / "events")},
            {
                "path": f"s3://lake/{shop.name}/spool",
                "state": str(tmp_path / "state"),
                "storage_options": s3_store.options,
            },
            {
                "path": f"s3://lake/{shop.name}/{{schema}}/{{table}}",
                "storage_options": s3_store.options,
            },
        )
        story.fill()
        assert "executors: 2 on" in story.call("check")
        with story.running():
            story.await_copies()
            some_changes(shop, 100_000)
            shop.execute(LARGE.format(first=400_000, last=399_999 + _LARGE_ROWS))
            story.await_position(story.flushed())
            await_that(
                lambda: _executors_of_a_transaction(tmp_path / "events") == 2,
                "two executors share a transaction's rows",  # the position rises before
            )
            some_changes(shop, 200_000, rounds=5)
            _kill_executor_of(cluster.workers[0])
            story.await_position(story.flushed())
            some_changes(shop, 220_000, rounds=5)  # the driver is killed at some point of them
        with story.capturing(), story.running("--without-capture"):
            some_changes(shop, 300_000, rounds=5)
            story.await_position(story.flushed())
        story.call("run", "--once")
        story.call("verify")
        row["figures"] = f"4 tables, {_LARGE_ROWS:,} rows in one transaction, by two executors"
        row["shown"] = "an executor and the driver killed, capture apart; verify: equal"


@pytest.fixture
def shop() -> Iterator[Database]:
    """A database of its own server: pgbench's changes are not other tests'."""
    settings = {"fsync": "off", "max_prepared_transactions": "20", "autovacuum": "off"}
    with EmbeddedServer(18, settings=settings) as server:
        yield Database(server, "postgres")


@OWN_SPARK
@_THREE_SEEDS
def test_chaos(
    number: int,
    cluster: Standalone,
    shop: Database,
    s3_store: ObjectStore,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
) -> None:
    with report.row(f"chaos, data, isolated machines ({number} of 3)", seed) as row:
        make_tables(shop)
        one = pipeline(shop, source="two_phase = true")
        on_cluster(one, cluster, s3_store)
        with MODES["data"].prepare(one), capture_apart(one):
            fought = fight(one, seconds=SECONDS, kills=KILLS, seed=seed, mode=MODES["data"])
            one.stop()
        row["figures"] = (
            f"{SECONDS} s; {fought.transactions} transactions, {fought.verifications};"
            f" SIGKILL to {_counted(fought.killed)}; all applied within"
            f" {fought.settled_s:.0f} s"
        )
        assert not fought.wrong, fought.complaint(seed)
        row["shown"] = f"{fought.tables} tables equal row for row"


@OWN_SPARK
@_THREE_SEEDS
def test_pgbench_under_fire(
    number: int,
    cluster: Standalone,
    shop: Database,
    s3_store: ObjectStore,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
) -> None:
    what = f"pgbench under fire, isolated machines ({number} of 3)"
    with report.row(what, seed) as row:
        initialise(shop)
        one = pipeline(shop)
        on_cluster(one, cluster, s3_store)
        with capture_apart(one):
            killed = fire(one, seconds=SECONDS, kills=KILLS, seed=seed)
        row["figures"] = f"TPC-B, scale 5, 4 clients, {SECONDS} s; SIGKILL to {_counted(killed)}"
        row["shown"] = "4 tables equal row for row"


@OWN_SPARK
def test_a_batch_of_many_tables_uses_both_executors(
    cluster: Standalone,
    shop: Database,
    s3_store: ObjectStore,
    pipeline: MakePipeline,
    tmp_path: Path,
    report: Report,
    seed: int,
) -> None:
    with report.row(f"a transaction that changes {_TABLES} tables, isolated machines", seed) as row:
        names = [f"t{number}" for number in range(_TABLES)]
        shop.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)" for name in names))
        shop.execute(*(f"INSERT INTO {name} SELECT generate_series(1, 50), 0" for name in names))
        one = pipeline(shop)
        one.spark |= event_log(tmp_path / "events")
        on_cluster(one, cluster, s3_store)
        with capture_apart(one):
            one.start()
            one.wait_applied(SOAK_HANGS_S)
            shop.execute("; ".join(f"UPDATE {name} SET n = 1" for name in names))
            one.wait_applied(SOAK_HANGS_S)
            one.stop()
        one.assert_equal(*names)
        tasks = _tasks_of_batches(tmp_path / "events", r".* and \d+ more")
        shares = sorted(Counter(max(tasks, key=len)).values())
        assert len(shares) == 2, "both executors have applied tables of one batch"
        row["figures"] = f"{_TABLES} tables; tasks of the batch on each executor: {shares}"
        row["shown"] = "all equal row for row"


def _spark() -> str:
    """The version, for the page, if it is not that of the other soaks."""
    code = "from importlib.metadata import version; print(version('pyspark'))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return "" if IS_OWN else f", Spark {done.stdout.strip()}"


def _counted(killed: list[str]) -> str:
    return ", ".join(f"{kind} {count}x" for kind, count in sorted(Counter(killed).items()))


def _executors_of_a_transaction(events: Path) -> int:
    """How many executors have staged one table's changes of a batch, at most.

    That is the last but one of the four jobs, which follow one for the other tables.
    """
    batches: dict[str, list[list[str]]] = {}
    for what, tasks in executors_of_jobs(events):
        if "apply" in what and "orders" in what:
            batches.setdefault(what, []).append(tasks)
    return max((len({*jobs[-2]}) for jobs in batches.values() if len(jobs) >= 4), default=0)


def _tasks_of_batches(events: Path, tables: str) -> list[list[str]]:
    """The executors of the tasks of each job that applied a batch of these tables.

    Args:
        tables: the beginning of a job's list of tables, a pattern.
    """
    wanted = re.compile(rf"pgsluice: apply {tables} in ")
    return [tasks for what, tasks in executors_of_jobs(events) if wanted.match(what)]


def _kill_executor_of(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL the executors that a worker has started."""
    found = subprocess.run(
        ["pgrep", "-g", str(os.getpgid(worker.pid)), "-f", "CoarseGrainedExecutorBackend"],
        capture_output=True,
        text=True,
        check=False,
    )
    numbers = found.stdout.split()
    assert numbers, "the worker has an executor"
    subprocess.run(["kill", "-9", *numbers], check=True)
