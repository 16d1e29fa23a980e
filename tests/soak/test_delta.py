"""Delta tables, merged on read and on write: random steps beside a model.

Steps are ours, of deltalake and of Spark with Delta's own jar. deltalake's engine reads after each
step, polars after each fourth, and Spark after its own; at the end also DuckDB and deltalake's SQL.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.sinks.delta_fuzz import run_in_store, run_tables
from tests.soak.report import Report
from tests.support.delta_spark import delta_spark
from tests.support.object_stores import ministack
from tests.support.pipeline import BUCKET

from pgsluice.lsn import Lsn
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT
from pgsluice.testing.sink_contract import TABLE, batches, changes, identity, net, row

pytestmark = pytest.mark.soak

SEEDS = int(os.environ.get("PGSLUICE_SOAK_TABLES", "20"))
STORED_SEEDS = int(os.environ.get("PGSLUICE_SOAK_STORED_TABLES", "5"))
STEPS = int(os.environ.get("PGSLUICE_SOAK_STEPS", "2000"))
PROCESSES = min(SEEDS, os.cpu_count() or 1)
"""That work on tables at the same time; each has a session of Spark."""


def test_random_steps_keep_table_and_model_equal(tmp_path: Path, report: Report, seed: int) -> None:
    with (
        report.row("Delta tables beside a model", seed) as line,
        ProcessPoolExecutor(PROCESSES, get_context("spawn")) as processes,
    ):
        shares = [range(seed + first, seed + SEEDS, PROCESSES) for first in range(PROCESSES)]
        folders = [tmp_path / str(number) for number in range(PROCESSES)]
        done = sum(processes.map(run_tables, folders, shares, repeat(STEPS)), Counter[str]())
        steps = ", ".join(f"{count} {name}" for name, count in done.most_common())
        line["figures"] = f"{SEEDS} tables, {STEPS} steps each: {steps}"
        line["shown"] = (
            "equal by deltalake after each step, by polars after each fourth, by Spark after each"
            " of its own and at the end, at the end also by DuckDB and deltalake's SQL"
        )


def test_random_steps_in_a_store_keep_table_and_model_equal(
    tmp_path: Path, report: Report, seed: int
) -> None:
    """Without Spark's steps; and the store loses answers, refuses and is slow."""
    with (
        report.row("Delta tables in a store beside a model", seed) as line,
        ministack() as store,
        ProcessPoolExecutor(PROCESSES, get_context("spawn")) as processes,
    ):
        store.make_bucket(BUCKET)
        seeds = range(seed, seed + STORED_SEEDS)
        folders = [tmp_path / str(number) for number in seeds]
        done = list(
            processes.map(run_in_store, folders, seeds, repeat(STEPS), repeat(store.options))
        )
        steps: Counter[str] = sum((each for each, _ in done), Counter())
        faults: Counter[str] = sum((each for _, each in done), Counter())
        named, lost = (
            ", ".join(f"{count} {name}" for name, count in counts.most_common())
            for counts in (steps, faults)
        )
        line["figures"] = f"{STORED_SEEDS} tables, {STEPS} steps each: {named}; faults: {lost}"
        line["shown"] = (
            "equal by deltalake after each step, by polars after each fourth, at the end also by"
            " DuckDB and deltalake's SQL"
        )


def test_the_change_data_feed_says_what_changed(tmp_path: Path) -> None:
    """Delta's readers infer it from the vectors: an update is a delete and an insert."""
    sink = DeltaSink(f"{tmp_path}/{{table}}", merge="on_read", cache_dir=f"{tmp_path}/keys")
    location = sink.location("public", "t")
    TableWriter(sink, TABLE, identity()).load(batches(*map(row, range(4))), Lsn(100))
    DeltaTable(location).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    first, second = changes(), changes()
    first.update(row(1, 10, ABSENT))
    first.update(row(2, 20, ABSENT))
    first.insert(row(9))
    second.delete({"id": 2})
    for position, t in enumerate((first, second), 110):
        writer = TableWriter(sink, TABLE, identity())
        writer.apply(net(t), Lsn(position))
    with delta_spark(tmp_path) as spark:
        feed = spark.rows(
            "SELECT _commit_version, _change_type, id, a"
            f" FROM table_changes_by_path('{location}', 2) ORDER BY 1, 2, 3"
        )
    assert [tuple(change.values()) for change in feed] == [
        (2, "delete", 1, 0),
        (2, "delete", 2, 0),
        (2, "insert", 1, 10),
        (2, "insert", 2, 20),
        (2, "insert", 9, 0),
        (3, "delete", 2, 20),
    ]
