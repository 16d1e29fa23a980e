"""Delta tables that are merged on read: random steps beside a model.

Steps are ours, of deltalake and of Spark with Delta's own jar. deltalake's engine and polars read
after each step; at the end also Spark and deltalake's SQL.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tests.soak.report import Report
from tests.support.delta_fuzz import KEYS, DeltaFuzz
from tests.support.delta_spark import delta_spark

pytestmark = pytest.mark.soak

SEEDS = int(os.environ.get("PGSLUICE_SOAK_TABLES", "20"))
STEPS = int(os.environ.get("PGSLUICE_SOAK_STEPS", "2000"))


def test_random_steps_keep_table_and_model_equal(
    tmp_path: Path, report: Report, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.COMMITS", 10)
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.FILES_OF_A_SIZE", 4)
    with (
        report.row("merge-on-read beside a model", seed) as row,
        delta_spark(tmp_path) as spark,
    ):
        done: Counter[str] = Counter()
        for number in range(SEEDS):
            folder = tmp_path / str(number)
            folder.mkdir()
            kind = list(KEYS)[number % len(KEYS)]
            table = DeltaFuzz(folder, seed + number, kind, spark=spark)
            try:
                table.run(STEPS)
                table.check_by_all()
            except Exception as error:
                error.add_note(f"table {number}, its seed {seed + number}, key {kind}")
                raise
            done += table.done
        steps = ", ".join(f"{count} {name}" for name, count in done.most_common())
        row["figures"] = f"{SEEDS} tables, {STEPS} steps each: {steps}"
        row["shown"] = "equal after each step by deltalake and polars, at the end by Spark"
