"""A cluster whose executors see no file of the driver: a store is all that they share.

A standalone master, and two workers, each in its own mount namespace with empty file systems over
every folder that the driver writes. Mounting needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.soak.report import Report
from tests.support.databases import MakeDatabase
from tests.support.object_stores import ObjectStore
from tests.support.spark_story import LARGE, SparkStory, some_changes
from tests.support.standalone import Standalone, standalone

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems"),
]
PYTHON = Path(os.environ.get("PGSLUICE_SPARK_PYTHON", sys.executable))
_DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A batch has a task for each core, and a lost worker's tasks go to the other one.
    "spark.cores.max": "2",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """Two workers that see neither temporary files nor caches."""
    hidden = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")}
    hidden |= {each for each in (Path.home() / ".cache",) if each.is_dir()}
    with standalone(PYTHON, tmp_path, workers=2, hidden=sorted(hidden)) as running:
        yield running


def test_a_spool_on_a_disk_is_said_to_be_invisible(
    cluster: Standalone, database: MakeDatabase, tmp_path: Path, report: Report, seed: int
) -> None:
    with report.row("a spool on a disk that executors do not see", seed) as row:
        settings = {"spark.master": cluster.url, **_DRIVER}
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
    with report.row("spool and targets in a store, isolated workers", seed) as row:
        shop = database()
        story = SparkStory(
            PYTHON,
            tmp_path,
            shop,
            {"spark.master": cluster.url, **_DRIVER},
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
            shop.execute(LARGE.format(first=400_000, last=599_999))
            story.await_position(story.flushed())
            some_changes(shop, 200_000, rounds=5)
            _kill_executor_of(cluster.workers[0])
            story.await_position(story.flushed())
            some_changes(shop, 220_000, rounds=5)  # the driver is killed at some point of them
        with story.capturing(), story.running("--without-capture"):
            some_changes(shop, 300_000, rounds=5)
            story.await_position(story.flushed())
        story.call("run", "--once")
        story.call("verify")
        row["figures"] = "4 tables, 200,000 rows in one transaction"
        row["shown"] = "an executor and the driver killed, capture apart; verify: equal"


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
