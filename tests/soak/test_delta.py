"""Delta tables that are merged on read: random steps beside a model, read by three readers.

deltalake's engine and polars read after each step, Spark with Delta's own jar at the end.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyarrow import feather
from tests.pipeline.test_readers import PACKAGE, SPARK_SQL
from tests.soak.report import Report
from tests.support.delta_fuzz import KEYS, DeltaFuzz, comparable

pytestmark = pytest.mark.soak

SEEDS = 20
STEPS = 2000


def test_random_steps_keep_table_and_model_equal(
    tmp_path: Path, report: Report, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.COMMITS", 10)
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.FILES_OF_A_SIZE", 4)
    with report.row("merge-on-read beside a model", seed) as row:
        done: Counter[str] = Counter()
        tables = []
        for number in range(SEEDS):
            folder = tmp_path / str(number)
            folder.mkdir()
            table = DeltaFuzz(folder, seed + number, list(KEYS)[number % len(KEYS)])
            table.run(STEPS)
            done += table.done
            tables.append(table)
        _assert_equal_by_spark(tables, tmp_path)
        steps = ", ".join(f"{count} {name}" for name, count in done.most_common())
        row["figures"] = f"{SEEDS} tables, {STEPS} steps each: {steps}"
        row["shown"] = "equal after each step by deltalake and polars, at the end by Spark"


def _assert_equal_by_spark(tables: list[DeltaFuzz], tmp_path: Path) -> None:
    script = tmp_path / "spark_sql.py"
    script.write_text(SPARK_SQL)
    outs = [tmp_path / f"{number}.rows" for number in range(len(tables))]
    pairs = [
        str(each) for table, out in zip(tables, outs, strict=True) for each in (table.location, out)
    ]
    subprocess.run([sys.executable, str(script), PACKAGE, *pairs], check=True, timeout=900)
    for table, out in zip(tables, outs, strict=True):
        rows = feather.read_table(out).to_pylist()
        expected = sorted(map(comparable, table.model.values()))
        assert sorted(map(comparable, rows)) == expected
