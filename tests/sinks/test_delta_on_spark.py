"""Delta's own Spark reader reads a table whose copy was staged by tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather
from tests.pipeline.test_readers import PACKAGE, SPARK_SQL

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_contract import SCHEMA, batches, identity, net, row


def test_spark_reads_a_staged_copy_and_changes_after_it(tmp_path: Path) -> None:
    sink = DeltaSink(f"{tmp_path}/{{table}}")
    schema = SCHEMA.append(pa.field("local", pa.timestamp("us")))
    table = TargetTable("public", "t", schema, ("id",))
    rows = [{**row(id_), "local": None} for id_ in (1, 2, 3)]
    parts = [
        TableWriter(sink, table, identity()).stage_load(batches(*part, schema=schema), Lsn(100))
        for part in (rows[:2], rows[2:])
    ]
    TableWriter(sink, table, identity()).commit_load(parts, Lsn(100))
    changes = ChangesBuilder(schema)
    changes.update({**row(2, 20, ABSENT), "local": None})
    changes.delete({"id": 3})
    TableWriter(sink, table, identity()).apply(net(changes, table=table), Lsn(110))
    content = _read_with_spark(sink.location("public", "t"), tmp_path)
    expected = [{**row(1), "local": None}, {**row(2, 20), "local": None}]
    assert content.sort_by("id").to_pylist() == expected


def _read_with_spark(location: str, tmp_path: Path) -> pa.Table:
    script, out = tmp_path / "spark_sql.py", tmp_path / "rows.feather"
    script.write_text(SPARK_SQL)
    process = subprocess.run(
        [sys.executable, str(script), PACKAGE, location, str(out)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = process.stdout + process.stderr
    if process.returncode and "unresolved dependency" in output.lower():
        pytest.skip(f"Maven Central cannot be reached for {PACKAGE}")
    assert process.returncode == 0, process.stderr[-3000:]
    return feather.read_table(out)
