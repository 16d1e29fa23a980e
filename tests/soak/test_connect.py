"""A session of Spark Connect: the source works over it, and a run refuses it.

``PGSLUICE_SPARK_PYTHON`` names an environment with ``pyspark[connect]``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_readme import changes, script
from tests.soak.sparks.story import environment
from tests.support.databases import MakeDatabase

pytestmark = pytest.mark.soak
PYTHON = Path(os.environ.get("PGSLUICE_SPARK_PYTHON", sys.executable))
_REFUSED = """
from pgsluice import Subscription
from pgsluice.errors import ConfigError
try:
    Subscription({config!r}).run(once=True)
except ConfigError as error:
    print("refused:", error.what)
"""
_CONFIG = """
[source]
dsn = "dbname=shop"
[spool]
path = "other"
[[subscription]]
name = "lake"
sink = { type = "delta", path = "lake/{schema}/{table}" }
"""


def test_the_stream_of_the_readme_over_connect(database: MakeDatabase, tmp_path: Path) -> None:
    found = subprocess.run([PYTHON, "-c", "import grpc, grpc_status"], check=False)
    if found.returncode:
        pytest.skip("the environment lacks pyspark[connect]")
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(8,2), placed timestamptz)",
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 500) n",
    )
    config = tmp_path / "shop.toml"
    config.write_text(_CONFIG)
    code = script(shop, tmp_path)
    remote = 'SparkSession.builder.remote("local[2]").getOrCreate()'
    assert code.count("SparkSession.builder.getOrCreate()") == 1
    code = code.replace("SparkSession.builder.getOrCreate()", remote)
    code += "\nprint(type(spark).__module__)\n" + _REFUSED.format(config=str(config))
    done = subprocess.run(
        [PYTHON, "-c", code],
        env={**environment(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pyspark.sql.connect" in done.stdout
    assert "refused: `pgsluice run` cannot use Spark Connect" in done.stdout
    assert sorted(row["id"] for row in changes(tmp_path)) == [*range(1, 501)]
