"""Lost state: folders of a machine whose spool is in a store, a machine's work done by two of them,
and a spool of which only the targets are left.
"""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.sinks.test_staging import peak_bytes
from tests.soak.report import Report
from tests.support.children import Child
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.object_stores import ObjectStore, versitygw
from tests.support.pgbench import TABLES, await_until, bench, initialise, kill, start_again
from tests.support.pipeline import BUCKET, MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.config import load_config
from pgsluice.embedded import EmbeddedServer
from pgsluice.subscription.running.run import run

pytestmark = pytest.mark.soak

LOSSES = 10
SECONDS = 120
SCALE = 10
ADOPTED_ROWS = int(os.environ.get("PGSLUICE_ADOPTED_ROWS", "2000000"))
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


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_a_lost_spool(
    merge: str,
    database: MakeDatabase,
    pipeline: MakePipeline,
    tmp_path: Path,
    seed: int,
    report: Report,
) -> None:
    """A target of which one row differs is adopted: the row's range of keys is read again."""
    with (
        report.row(f"a spool is lost, its target is adopted, {merge}, in versitygw", seed) as row,
        versitygw(tmp_path / "versitygw") as store,
    ):
        store.make_bucket(BUCKET)
        one = pipeline(shop := database())
        one.sink_options = f', merge = "{merge}"'
        one.have_store(store)
        one.write("adopt = true")
        shop.execute(
            "CREATE TABLE t (id int PRIMARY KEY, word text)",
            f"""INSERT INTO t SELECT i, (SELECT string_agg(md5(i || ' ' || j), '')
                FROM generate_series(1, 8) j) FROM generate_series(1, {ADOPTED_ROWS}) i""",
        )
        one.once()
        shutil.rmtree(one.spool)
        shop.execute(f"SELECT pg_drop_replication_slot('{shop.name}')")
        changed = random.Random(seed).randint(1, ADOPTED_ROWS)
        shop.execute(f"UPDATE t SET word = 'changed' WHERE id = {changed}")
        before, version = file_sizes(one, "t"), one.delta("t").version()
        child = Child(adopt, one.path, tmp_path)
        assert child.wait(HANGS_S * 10) == 0
        ((found, ranges),) = re.findall(
            r"((\d+) of \d+ ranges of keys differed, and \d+ of \d+ rows)",
            (tmp_path / "adopt.log").read_text(),
        )
        assert int(ranges) == 1
        assert one.delta("t").version() == version + 1
        after = file_sizes(one, "t")
        written = sum(size for name, size in after.items() if name not in before)
        peak = int((tmp_path / "peak").read_text())
        assert written < sum(before.values()) / 5
        one.assert_equal("t")
        row["figures"] = (
            f"{ADOPTED_ROWS:,} rows, {sum(before.values()) / 1e6:.0f} MB; one row differs"
        )
        row["shown"] = (
            f"equal; {found} were read again, and {written / 1e6:.1f} MB written; the run's"
            f" process grew by {peak / 2**20:.0f} MiB"
        )


def adopt(config: Path, folder: Path) -> None:
    """``pgsluice run --once`` in this process; it writes down by how many bytes it grew."""
    logging.basicConfig(filename=folder / "adopt.log", level=logging.INFO)
    use_local_spark(pytest.MonkeyPatch())
    before = peak_bytes()
    run(load_config(config), once=True)
    (folder / "peak").write_text(str(peak_bytes() - before))


def file_sizes(one: Pipeline, table: str) -> dict[str, int]:
    """The data files of a target's newest version, and their sizes in bytes."""
    files = pa.table(one.delta(table).get_add_actions()).select(["path", "size_bytes"])
    return {each["path"]: each["size_bytes"] for each in files.to_pylist()}


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
