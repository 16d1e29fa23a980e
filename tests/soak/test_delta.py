"""Delta tables that are merged on read: random steps beside a model.

Steps are ours, of deltalake and of Spark with Delta's own jar. deltalake's engine reads after each
step, and polars after each fourth; at the end also Spark, DuckDB and deltalake's SQL.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.soak.report import Report
from tests.support.delta_fuzz import KEYS, DeltaFuzz
from tests.support.delta_spark import delta_spark

from pgsluice.lsn import Lsn
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT
from pgsluice.testing.sink_contract import TABLE, batches, changes, identity, net, row

pytestmark = pytest.mark.soak

SEEDS = int(os.environ.get("PGSLUICE_SOAK_TABLES", "20"))
STEPS = int(os.environ.get("PGSLUICE_SOAK_STEPS", "2000"))


def test_random_steps_keep_table_and_model_equal(
    tmp_path: Path, report: Report, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.delta.net_merge.LARGE_SHARE", 0.2)
    monkeypatch.setattr("pgsluice.sinks.delta.deletion_vectors.INLINE_BYTES", 2048)
    monkeypatch.setattr("pgsluice.sinks.delta.maintenance.MANY_COMMITS", 10)
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.FILES_OF_A_SIZE", 4)
    with (
        report.row("merge-on-read beside a model", seed) as line,
        delta_spark(tmp_path) as spark,
    ):
        done: Counter[str] = Counter()
        for number in range(SEEDS):
            folder = tmp_path / str(number)
            folder.mkdir()
            kind = list(KEYS)[(seed + number) % len(KEYS)]
            table = DeltaFuzz(folder, seed + number, kind, spark=spark)
            try:
                table.run(STEPS)
                table.check_by_all()
            except Exception as error:
                error.add_note(f"table {number}, its seed {seed + number}, key {kind}")
                raise
            done += table.done
        steps = ", ".join(f"{count} {name}" for name, count in done.most_common())
        line["figures"] = f"{SEEDS} tables, {STEPS} steps each: {steps}"
        line["shown"] = (
            "equal by deltalake after each step, by polars after each fourth, at the end by Spark"
            " and DuckDB"
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
