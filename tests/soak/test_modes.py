"""The modes of subscriptions: sequences of DDL in each, and the query of docs/modes.md in Spark."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.test_changelog import BIG, CHANGELOG, History, assert_rebuilt, log_of, program
from tests.pipeline.test_history import HISTORY, assert_as_of
from tests.pipeline.test_keyless import run_random
from tests.pipeline.test_rejects import MODES as REJECTS_IN
from tests.pipeline.test_rejects import (
    assert_rejects_of_random_changes,
    assert_verified,
    in_pieces,
    rejects_of,
)
from tests.soak.public_schema import change, fill, migrate
from tests.soak.report import Report
from tests.soak.test_sequences import AREAS
from tests.support.change_logs import by_loop, by_query, query
from tests.support.databases import MakeDatabase, Servers
from tests.support.ddl.row import Moment
from tests.support.every_mode import OTHER_MODES, assert_modes_equal, other_modes
from tests.support.histories import as_of_query, history_of
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.sequences.running import Verdict, render, run_drawn

from pgsluice.changes.change_log import LogColumns
from pgsluice.changes.history.columns import TIME, HistoryColumns
from pgsluice.lsn import Lsn
from pgsluice.spark.versions import SparkVersion
from pgsluice.testing.changes import ABSENT, ChangesBuilder

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("status", pa.string()), ("note", pa.string())]
)
LOG = LogColumns("_")
HISTORY_COLUMNS = HistoryColumns("_")
COLUMNS = LOG.of_table(SCHEMA, "orders")

pytestmark = pytest.mark.soak
KEYLESS_RUNS = int(os.environ.get("PGSLUICE_SOAK_KEYLESS_RUNS", "20"))
REJECTS_RUNS = int(os.environ.get("PGSLUICE_SOAK_REJECTS_RUNS", "12"))
PLACES_OF_A_COMMIT = ("delta.written", "delta.before_commit", "delta.after_commit")
SEQUENCES = int(os.environ.get("PGSLUICE_SOAK_SEQUENCES", "63"))
"""At each moment, by each of the programs and servers: 3,024 in all."""
MOMENTS = (Moment.STOPPED, Moment.SEVERAL_POLLS, Moment.TRANSACTION, Moment.ROLLED_BACK)
PROGRAMS = (
    ("log", "columns"),
    ("log", "columns without a key"),
    ("history", "columns"),
    ("history", "partitions"),
    ("marked", "columns"),
    ("marked", "partitions"),
)
"""Mode and area; tests/soak/test_sequences.py has those of current tables."""


def a_log() -> pa.Table:
    copied = pa.record_batch([[1, 2, 3], ["a", "b", "c"], ["one", "two", None]], schema=SCHEMA)
    t = ChangesBuilder(SCHEMA, position=110)
    t.update({"id": 1, "status": "a2", "note": ABSENT})
    t.update({"id": 7, "status": "moved", "note": ABSENT}, old={"id": 1})
    t.commit()
    t.update({"id": 8, "status": ABSENT, "note": ABSENT}, old={"id": 7})
    t.update({"id": 1, "status": "b1", "note": ABSENT}, old={"id": 2})
    t.delete({"id": 3})
    t.insert({"id": 3, "status": "again", "note": None})
    t.commit()
    t.delete({"id": 3})
    t.insert({"id": 2, "status": None, "note": "new"})
    added = {"note": pa.scalar("from a column", pa.string())}
    parts = [
        LOG.copy_begins(COLUMNS, Lsn(100), 1),
        LOG.copied(copied, COLUMNS, Lsn(100), 1),
        *LOG.rows([t.build()], COLUMNS).to_batches(),
        LOG.column_added(COLUMNS, Lsn(112), added, copy_number=1, version=5),
        LOG.copy_begins(COLUMNS, Lsn(120), 2),
        LOG.copied(copied.slice(1), COLUMNS, Lsn(120), 2),
    ]
    return pa.Table.from_batches(parts, COLUMNS)


@pytest.mark.skipif(
    SparkVersion.parse(pyspark.__version__) < (4, 1),
    reason="recursive queries came with Spark 4.1",
)
def test_the_query_in_spark(spark: SparkSession) -> None:
    log = a_log()
    spark.createDataFrame(log).createOrReplaceTempView("orders_log")
    for position in (100, 111, 112, 120):
        found = [row.asDict() for row in spark.sql(query(position)).collect()]
        found.sort(key=lambda row: repr([*row.values()]))
        assert found == by_query(log, position) == by_loop(log, ["id"], position), position
    assert by_loop(log, ["id"], 111) == [
        {"id": 1, "status": "b1", "note": "two"},
        {"id": 3, "status": "again", "note": None},
        {"id": 8, "status": "moved", "note": "one"},
    ]


def test_the_query_of_a_history_in_spark(spark: SparkSession) -> None:
    copied = pa.record_batch([[1, 2], ["a", "b"], ["one", None]], schema=SCHEMA)
    current = pa.Table.from_batches([HISTORY_COLUMNS.copied(copied, Lsn(100))])
    ends = np.array([120], np.int64)
    closed = HISTORY_COLUMNS.closed(current.slice(0, 1), ends, pa.nulls(1, TIME))
    spark.createDataFrame(pa.concat_tables([closed, current.slice(1)])).createOrReplaceTempView(
        "orders_history"
    )
    found = [
        sorted(row.id for row in spark.sql(as_of_query(position)).collect())
        for position in (99, 100, 119, 120)
    ]
    assert found == [[], [1, 2], [1, 2], [2]]


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize("version", [18, 14], ids="pg{}".format)
@pytest.mark.parametrize(("mode", "area"), PROGRAMS, ids="{}".format)
def test_sequences_in_each_mode(
    servers: Servers,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    report: Report,
    seed: int,
    mode: str,
    area: str,
    version: int,
) -> None:
    """Sequences of DDL with changes between them, as of tests/soak/test_sequences.py."""
    monkeypatch.setattr(Pipeline, "subscription_options", OTHER_MODES[mode])
    draw, _ = AREAS[area]
    verdicts: list[Verdict] = []
    with report.row(f"sequences on {area}, {mode}, PostgreSQL {version}", seed) as row:
        for moment in MOMENTS:
            drawn = [draw(seed, number, moment, version) for number in range(SEQUENCES)]
            found = run_drawn(pipeline, lambda: database(servers(version)), drawn, moment)
            wrong = [render(one, moment, version) for one in found if one.seen.differences]
            assert not wrong, "\n".join(wrong)
            verdicts += found
        parked = Counter(error for one in verdicts for error in {*one.seen.errors})
        sys.stdout.writelines(f"\n{count} x {error}" for error, count in parked.items())
        row["figures"] = (
            f"{len(verdicts)} sequences, at {len(MOMENTS)} moments;"
            f" {sum(bool(one.seen.errors) for one in verdicts)} parked"
        )
        row["shown"] = "the table that follows from each target is the source's"


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_random_changes_without_a_key(
    database: MakeDatabase, pipeline: MakePipeline, report: Report, seed: int, merge: str
) -> None:
    one = pipeline(database())
    one.sink_options = f', merge = "{merge}"'
    one.write()
    with report.row(f"random changes of a table without a key, {merge}", seed) as row:
        run_random(one, random.Random(seed), KEYLESS_RUNS, 100)
        row["figures"] = f"{KEYLESS_RUNS} runs of 100 statements"
        row["shown"] = "after each run, each row is there as often as at the source"


def change_until_killed(
    one: Pipeline, history: History, rng: random.Random, folder: Path
) -> subprocess.Popen[bytes]:
    """Change rows until the run was killed once at each place of a commit; returns the run, which
    was started again if the driver was killed."""
    folder.mkdir()
    kills = ",".join(f"{place}=kill:{folder / place}" for place in PLACES_OF_A_COMMIT)
    run = one.start("run", PGSLUICE_FAILPOINTS=kills)
    changes = program(rng, history, 1000)
    while not all((folder / place).exists() for place in PLACES_OF_A_COMMIT):
        assert next(changes, None) is not None, one.log()[-2000:]
        time.sleep(0.1)  # so that several batches have them
        if run.poll() is not None:
            one.processes.clear()
            run = one.start("run", PGSLUICE_FAILPOINTS=kills)
    return run


def test_killed_runs_add_each_change_once(
    database: MakeDatabase, pipeline: MakePipeline, report: Report, seed: int, tmp_path: Path
) -> None:
    """Workers are killed before and after a commit, then the run, in the middle of changes."""
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, 'old', {BIG} FROM generate_series(1, 10) i",
    )
    one = pipeline(shop, extra=CHANGELOG)
    history = History(shop, "orders")
    rng = random.Random(seed)
    run = one.start("run")  # the driver commits copies, and would be the one that is killed
    one.wait_applied()
    run.kill()
    run.wait()
    one.processes.clear()
    with report.row("workers and runs killed while a change log is written", seed) as row:
        for number in range(2):
            run = change_until_killed(one, history, rng, tmp_path / str(number))
            run.kill()
            run.wait()
            one.processes.clear()
        one.once()
        killed = len([*tmp_path.glob("*/delta.*")])
        log = log_of(one, "orders")
        places = zip(
            *(log[f"_{name}"].to_pylist() for name in ("commit_version", "ordinal", "change_type")),
            log["id"].to_pylist(),
            strict=True,
        )
        assert max(Counter(places).values()) == 1
        assert_rebuilt(log, history.moments, with_query=True)
        row["figures"] = (
            f"{len(history.moments)} transactions; SIGKILL to {killed} workers or drivers, and to 2"
            " runs"
        )
        row["shown"] = "each change is one row; the table is rebuilt at each transaction's position"


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_killed_runs_leave_the_sources_history(
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
    tmp_path: Path,
    merge: str,
) -> None:
    """Workers are killed before and after a commit, then the run, in the middle of changes; and
    the table is copied again."""
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, 'old', {BIG} FROM generate_series(1, 10) i",
    )
    one = pipeline(shop)
    one.sink_options = f', merge = "{merge}"'
    one.write(HISTORY)
    source = History(shop, "orders")
    rng = random.Random(seed)
    run = one.start("run")
    one.wait_applied()
    run.kill()
    run.wait()
    one.processes.clear()
    with report.row(f"workers and runs killed while a history is written, {merge}", seed) as row:
        for number in range(3):
            run = change_until_killed(one, source, rng, tmp_path / str(number))
            run.kill()
            run.wait()
            one.processes.clear()
            one.once()
            one.copy("orders")
            one.once()
        killed = len([*tmp_path.glob("*/delta.*")])
        versions = history_of(one.delta("orders"))
        assert_as_of(versions, source)
        row["figures"] = (
            f"{len(source.moments)} transactions, {len(versions)} versions; SIGKILL to {killed} "
            "workers or drivers and 3 runs, 3 copies again"
        )
        row["shown"] = "as of each transaction, the versions are the source's rows"


@pytest.mark.usefixtures("local_spark")
def test_a_public_schema_in_every_mode(
    database: MakeDatabase, pipeline: MakePipeline, report: Report, seed: int, tmp_path: Path
) -> None:
    shop, dice = database(), random.Random(seed)
    with report.row("django-oscar's schema, in every mode", seed) as row:
        tables = migrate(shop, tmp_path)
        assert len(tables) > 20
        fill(shop, tables, 1, 200)
        one = pipeline(shop)
        one.write(other_modes(one))
        one.once()
        changed = 0
        for number in range(5):
            fill(shop, tables, 1000 * (number + 1), 50)
            changed += change(shop, tables, dice)
            one.once()
        one.assert_equal(*tables)
        assert_modes_equal(one, tables)
        row["figures"] = f"{len(tables)} tables, {changed} rows updated or deleted"
        row["shown"] = f"none parked; equal in {1 + len(OTHER_MODES)} modes"


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize("mode", REJECTS_IN)
def test_rejects_of_random_changes(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    report: Report,
    seed: int,
    mode: str,
) -> None:
    if mode.startswith("large"):
        in_pieces(monkeypatch)
    with report.row(f"rejects of random changes, {mode}", seed) as row:
        for number in range(REJECTS_RUNS):
            shop = database()
            one = pipeline(shop, extra=REJECTS_IN[mode])
            assert_rejects_of_random_changes(shop, one, random.Random(seed + number))
        row["figures"] = f"{REJECTS_RUNS} tables, 24 transactions each"
        row["shown"] = "the open rejects are the source's values that do not fit, each once"
        if "history" in mode:
            row["shown"] += "; as of each transaction, versions and rejects are its rows"


PLACES = (
    "rejects.writing",
    "rejects.written",
    "delta.before_commit",
    "delta.after_commit",
    "rejects.folding",
    "rejects.folded",
    "batch.before_record",
    "rejects.written",
    "rejects.folding",
    "rejects.folded",
)
"""Where tasks or drivers are killed, round by round."""


@pytest.mark.parametrize("mode", ["current", "history"])
def test_ten_thousand_rejects_once_each(
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
    tmp_path: Path,
    mode: str,
) -> None:
    """In each round, a failpoint kills a worker or the run, and the test starts the run again."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, day date, note text)")
    one = pipeline(shop, extra=f'mode = "{mode}"')
    rng = random.Random(seed)
    title = "10,000 values that do not fit, workers and runs killed"
    with report.row(title + (", a history" if mode == "history" else ""), seed) as row:
        each = 10_000 // len(PLACES)
        drivers = 0
        for number, place in enumerate(PLACES):
            killed = tmp_path / f"killed{number}"
            run = one.start("run", PGSLUICE_FAILPOINTS=f"{place}=kill:{killed}")
            one.wait_until(lambda: bool(one.config.spool.place.folder.exists()), why="it runs")
            for part in range(5):
                first = number * each + part * each // 5
                text = rng.choice(["infinity", "-infinity"])
                shop.execute(
                    f"INSERT INTO t SELECT i, '{text}', 'bad' FROM"
                    f" generate_series({first + 1}, {first + each // 5}) i",
                    f"INSERT INTO t SELECT -i, '2024-01-01', 'good' FROM"
                    f" generate_series({first + 1}, {first + each // 5}) i",
                    f"UPDATE t SET note = 'sent again' WHERE id = {first + 1}",
                )
            processes = one.processes[:]
            one.processes.clear()  # it may end
            one.wait_until(killed.exists, why=f"{place} is reached")
            with suppress(subprocess.TimeoutExpired):  # a driver ends, a worker is replaced
                run.wait(3)
            drivers += run.poll() is not None
            one.processes += [each for each in processes if each.poll() is None]
            if run.poll() is None:
                one.wait_applied()
                run.kill()
                run.wait()
                one.processes.clear()
        one.once()
        rejects = rejects_of(one)
        expected = shop.execute("SELECT id, day::text FROM t WHERE NOT isfinite(day)")
        assert len(expected) == len(rejects) == 10_000
        assert {(each["key"], each["text"]) for each in rejects} == {
            (f'{{"id": "{number}"}}', text) for number, text in expected
        }
        assert all(each["resolved_position"] is None for each in rejects)
        assert_verified(one, "public.t")
        row["figures"] = f"{len(PLACES)} SIGKILLs at places, {drivers} of them to a run"
        row["shown"] = "10,000 rejects with their texts, each once; all other rows and values"
