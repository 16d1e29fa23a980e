"""A spool in a store, while machines are lost: their state folders go, or two do one's work."""

from __future__ import annotations

import random
import shutil
import time

import pytest
from tests.soak.report import Report
from tests.support.databases import Database, MakeDatabase
from tests.support.object_stores import ObjectStore
from tests.support.pgbench import TABLES, await_until, bench, initialise, kill, start_again
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

LOSSES = 10
SECONDS = 120
SCALE = 10
_VICTIMS = ("driver", "capture", "worker")
_STATE = "state"


def test_state_folders_are_lost_between_kills(
    s3_store: ObjectStore, pipeline: MakePipeline, seed: int, report: Report
) -> None:
    """Also while an orphaned capture still ends, and while a run works in the folder."""
    dice = random.Random(seed)
    with (
        report.row("state folders lost between kills, spool and tables in ministack", seed) as row,
        EmbeddedServer(18) as server,
    ):
        initialise(shop := Database(server, "postgres"), SCALE)
        one = pipeline(shop)
        one.have_store(s3_store)
        one.have_spool_in_store(s3_store)
        one.start()
        writing = bench(shop, SECONDS)
        killed = []
        for _ in range(LOSSES):
            await_until(time.monotonic() + dice.uniform(0.1, 2 * SECONDS / LOSSES))
            victim = dice.choice(_VICTIMS)
            if kill(one, victim, dice):
                killed.append(victim)
            shutil.rmtree(one.folder / _STATE, ignore_errors=True)
            start_again(one)
        output, _ = writing.communicate(timeout=HANGS_S)
        assert writing.returncode == 0, output
        one.wait_applied(meanwhile=lambda: start_again(one))
        one.assert_equal(*TABLES)
        copies = [one.table(table).copy_number for table in TABLES]
        row["figures"] = (
            f"TPC-B, scale {SCALE}, 4 clients, {SECONDS} s; {LOSSES} folders deleted; SIGKILL to"
            f" {', '.join(f'{name} {killed.count(name)}x' for name in sorted(set(killed)))}"
        )
        row["shown"] = f"4 tables equal row for row; copies of each: {min(copies)} to {max(copies)}"


def test_two_machines_do_the_same_work(
    s3_store: ObjectStore, database: MakeDatabase, pipeline: MakePipeline, seed: int, report: Report
) -> None:
    """Each with a capture and a run: one of them works, and all is applied once."""
    with report.row("two machines with one configuration, spool in ministack", seed) as row:
        initialise(shop := database(), 1)
        one = pipeline(shop)
        one.have_store(s3_store)
        one.have_spool_in_store(s3_store)
        other = _another_machine(one, pipeline(shop))
        writing = bench(shop, SECONDS // 2)
        ended: list[str] = []
        for _ in range(3):
            start_again(one)
            start_again(other)
            _await_one(one, other, ended)
        output, _ = writing.communicate(timeout=HANGS_S)
        assert writing.returncode == 0, output
        working = next(each for each in (one, other) if _is_alive(each))
        working.wait_applied()
        working.assert_equal(*TABLES)
        row["figures"] = (
            f"TPC-B, scale 1, 4 clients, {SECONDS // 2} s; started together three times"
        )
        row["shown"] = (
            f"one works, the other ended {len(ended)}x by name; 4 tables equal row for row"
        )


def _another_machine(one: Pipeline, other: Pipeline) -> Pipeline:
    """The same configuration with a state folder of its own."""
    other.path.write_text(one.path.read_text())
    other.lake_uri, other.storage_options = one.lake_uri, one.storage_options
    other.reading_options = one.reading_options
    return other


def _is_alive(one: Pipeline) -> bool:
    return any(process.poll() is None for process in one.processes)


def _await_one(one: Pipeline, other: Pipeline, ended: list[str]) -> None:
    """Wait until one of two has ended, with the reason in its log."""
    both = (one, other)
    deadline = time.monotonic() + HANGS_S
    while all(map(_is_alive, both)):
        assert time.monotonic() < deadline, "two runs work on one subscription"
        time.sleep(0.1)
    for each in both:
        for process in list(each.processes):
            if process.poll() is not None:
                each.processes.remove(process)
                reasons = ("another process", "slot", "already in use")
                assert any(reason in each.log() for reason in reasons), each.log()[-2000:]
                ended.append(each.log()[-300:])
