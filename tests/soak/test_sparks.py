"""The versions of Spark: a run and a stream with the PySpark of another environment.

``make matrix ARGS=--spark`` makes an environment for each version and runs this module with each of
them: ``PGSLUICE_SPARK_PYTHON`` names its Python. Without it, the PySpark is that of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.test_readme import changes, script
from tests.soak.sparks.standalone import standalone
from tests.soak.sparks.story import SparkStory, environment
from tests.support.databases import MakeDatabase

pytestmark = pytest.mark.soak
PYTHON = Path(os.environ.get("PGSLUICE_SPARK_PYTHON", sys.executable))
_DRIVER = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

_FEATURES = """
import json
from pgsluice.spark.installed import spark_version
found = {}
try:
    from pyspark.sql import datasource
    found["sources"] = True
    found["filters"] = hasattr(datasource.DataSourceReader, "pushFilters")
except ImportError:
    found["sources"] = found["filters"] = False
try:
    from pyspark.sql.streaming.datasource import ReadLimit
    found["limits"] = True
except ImportError:
    found["limits"] = False
version = spark_version()
asked = {"sources": version.has_data_sources, "limits": version.has_read_limits}
assert all(found[name] == value for name, value in asked.items()), (found, asked)
print(json.dumps(found))
"""


def features() -> dict[str, bool]:
    """What the version has, as its own classes say."""
    done = subprocess.run(
        [PYTHON, "-c", _FEATURES],
        env=environment(PYTHON),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, bool] = json.loads(done.stdout)
    return found


def need(name: str) -> None:
    """Skip a test of a feature that the version lacks."""
    if not features()[name]:
        pytest.skip("this version of Spark lacks it")


def test_data_sources_in_python() -> None:
    need("sources")


def test_filters_reach_the_server() -> None:
    need("filters")


def test_limits_of_batches() -> None:
    need("limits")


def test_run_local(database: MakeDatabase, tmp_path: Path) -> None:
    SparkStory(PYTHON, tmp_path, database(), {"spark.master": "local[2]"}).tell()


def test_run_on_a_standalone_master(database: MakeDatabase, tmp_path: Path) -> None:
    with standalone(PYTHON, tmp_path) as cluster:
        settings = {"spark.master": cluster.url, **_DRIVER}
        spool = {"path": "spool", "shared": True}
        story = SparkStory(PYTHON, tmp_path, database(), settings, spool)
        story.tell()
        assert "executors: 1 on" in story.call("check")


def test_stream_of_the_readme(database: MakeDatabase, tmp_path: Path) -> None:
    need("sources")
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(8,2), placed timestamptz)",
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 2000) n",
    )
    code = script(shop, tmp_path)
    # Before 4.2, a start reads one batch, and the first one only writes the rows into the spool.
    if not features()["limits"]:
        assert _rows_after_start(code, tmp_path) == []
    assert len(_rows_after_start(code, tmp_path)) == 2000
    shop.execute(
        "UPDATE orders SET amount = 9 WHERE id <= 100",
        "DELETE FROM orders WHERE id = 7",
        "INSERT INTO orders SELECT n, n FROM generate_series(3001, 3100) n",
    )
    rows = _rows_after_start(code, tmp_path)
    kinds = [row["_change_type"] for row in rows]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "insert": 2100,
        "update_postimage": 100,
        "delete": 1,
    }
    assert [row["id"] for row in rows if row["_change_type"] == "delete"] == [7]
    assert len(_rows_after_start(code, tmp_path)) == len(rows), "there is nothing new"


def _rows_after_start(code: str, folder: Path) -> list[dict[str, Any]]:
    """Start the query, and read all rows that it has written so far."""
    done = subprocess.run(
        [PYTHON, "-c", code],
        env={**environment(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return changes(folder) if any((folder / "changes").glob("*.parquet")) else []
