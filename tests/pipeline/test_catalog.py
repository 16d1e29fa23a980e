"""``register``: targets in the catalog of Spark's session, here PySpark's own Hive metastore.

The steps are three processes, since the tests' session has no jar of Delta's; the metastore is an
embedded Derby, which one process uses at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.delta_spark import EXCLUDED, PACKAGE
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

SQL = """
import json, sys
import pgsluice
from pgsluice.cli.app import run_command
from pyspark.sql import SparkSession

settings, command, *statements = map(json.loads, sys.argv[1:])
builder = SparkSession.builder.enableHiveSupport()
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
def say(frame):
    print("ROWS", json.dumps([list(row) for row in frame.collect()], default=str))

for statement in statements:
    if statement.startswith("READ AT "):
        for name, frame in pgsluice.read_at(spark, statement.removeprefix("READ AT ")).items():
            print(name)
            say(frame.select(sorted(frame.columns)).orderBy(sorted(frame.columns)))
    else:
        say(spark.sql(statement))
if command:
    sys.exit(run_command(command))
"""


def _have_catalog(one: Pipeline, folder: Path) -> None:
    """Have the runs' sessions use the catalog in a folder."""
    settings = "".join(
        f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in _settings(folder).items()
    )
    text = one.path.read_text()
    one.path.write_text(f"{text.partition('[spark]')[0]}[spark]\n{settings}")


def _settings(folder: Path) -> dict[str, str]:
    return {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.jars.packages": PACKAGE,
        "spark.jars.excludes": EXCLUDED,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": (
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.stream.error.file={folder}/derby.log"
        ),
    }


class Answer(NamedTuple):
    """The rows of statements, and all that was printed."""

    rows: list[list[list[object]]]
    out: str


def _sql(folder: Path, *statements: str, command: Sequence[str] = ()) -> Answer:
    """Run statements in a session that others would have; skips without Delta's jar.

    Args:
        command: of pgsluice, which is run in that session afterwards.
    """
    arguments = [json.dumps(each) for each in (_settings(folder), command, *statements)]
    done = subprocess.run(
        [sys.executable, "-c", SQL, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    if done.returncode and "unresolved dependency" in (done.stdout + done.stderr).lower():
        pytest.skip(f"Maven Central cannot be reached for {PACKAGE}")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    rows = [json.loads(line.removeprefix("ROWS ")) for line in lines if line.startswith("ROWS ")]
    return Answer(rows, done.stdout)


def _run_once(one: Pipeline) -> str:
    done = one.command("run", str(one.path), "--once")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.soak  # make soak AREA=long
def test_targets_are_registered_compared_and_taken_out(
    pipeline: MakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "sink_options", ', register = "lake_{schema}.{table}"')
    one = pipeline()
    _have_catalog(one, tmp_path)
    one.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text)",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "CREATE TABLE taken (id int PRIMARY KEY)",
        "COMMENT ON TABLE taken IS 'not ours there'",
        "CREATE TABLE described (id int PRIMARY KEY, word text)",
        "COMMENT ON TABLE described IS 'what words mean'",
        "COMMENT ON COLUMN described.word IS 'a word''s text'",
    )
    _sql(
        tmp_path,
        "CREATE SCHEMA lake_public",
        "CREATE TABLE lake_public.taken (other int) USING parquet",
    )

    said = _run_once(one)
    assert (
        "the catalog already has another table with the name lake_public.taken: parquet at file:"
        in said
    )
    one.assert_equal("t", "taken")
    (subscription,) = one.status()["subscriptions"]
    problems = {table["table"]: table["catalog_problem"] for table in subscription["tables"]}
    assert problems["t"] is None
    assert "set register in the sink to another name" in problems["taken"]
    assert one.delta("t").version() == 0  # registering makes no commit

    others = _sql(
        tmp_path,
        "SELECT * FROM lake_public.t ORDER BY id",
        "SELECT * FROM lake_public.taken",
        "DESCRIBE TABLE EXTENDED lake_public.described",
        command=["drop", str(one.path), "--unregister", "--yes"],
    )
    rows, taken, described = others.rows
    assert rows == [[1, "one"], [2, "two"]]
    assert taken == []
    assert described[:2] == [["id", "int", None], ["word", "string", "a word's text"]]
    assert ["Comment", "what words mean", ""] in described
    assert "the catalog has no lake_public.t of ours" in others.out
    assert "lake_public.taken is kept: the catalog already has another table" in others.out
    one.assert_equal("t", "taken")  # the files stay


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_spark_finds_renamed_targets(
    pipeline: MakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    """In the catalog, and at a position, under the names that ``rename`` gives them."""
    options = f', merge = "{merge}", register = "lake_{{schema}}.{{table}}"'
    monkeypatch.setattr(Pipeline, "sink_options", options)
    names = {
        "public": "shop",
        "public.orders": "sold",
        "public.orders.x": "y",
        "public.orders.y": "é",
    }
    given = ", ".join(f"{json.dumps(old)} = {json.dumps(new)}" for old, new in names.items())
    monkeypatch.setattr(Pipeline, "subscription_options", f"rename = {{ {given} }}")
    one = pipeline()
    _have_catalog(one, tmp_path)
    one.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, x int, y text)",
        "INSERT INTO orders VALUES (1, 10, 'one'), (2, 20, 'two')",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    _sql(tmp_path, "CREATE SCHEMA lake_shop")
    _run_once(one)
    one.database.execute("UPDATE orders SET x = 11 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    _run_once(one)
    found = _sql(
        tmp_path,
        "SELECT id, y, `é` FROM lake_shop.sold",
        "SELECT count(*) FROM lake_shop.other",
        f"READ AT {one.path}",
        command=["drop", str(one.path), "--unregister", "--yes"],
    )
    assert found.rows == [[[1, 11, "one"]], [[0]], [[1, 11, "one"]], []]
    assert "public.orders\n" in found.out
    assert "lake_shop.sold" in found.out
