"""A backlog of inserts into a change log, against Spark that appends the same rows to Parquet.

The spool has the rows before the run starts. The time of a run that has nothing to do is deducted.
"""

from __future__ import annotations

import shutil
import time

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.report import Line, rate, ratio
from bench.stage import Shop, Stage
from bench.streams import capture
from pgsluice.config import Config
from pgsluice.subscription.running.run import run

ROUNDS = 3
"""The best of this many runs counts, for both."""


def measure(stage: Stage) -> list[Line]:
    """The one line; Spark's session has to be there."""
    rates = [0.0, 0.0]
    for number in range(ROUNDS):
        with stage.shop() as shop:
            shop.make_table("orders")
            config = stage.config(shop, f"log{number}", options='mode = "changelog"')
            found = _into_log(stage, shop, config), _by_spark(stage, config)
        rates = [max(pair) for pair in zip(rates, found, strict=True)]
    ours, sparks = rates
    return [
        Line(
            ratio(ours, sparks),
            "≥ 0.8 x",
            "rows appended to a change log from the spool",
            rate(ours),
            f"Spark, from Parquet to Parquet {rate(sparks)}",
        )
    ]


def _into_log(stage: Stage, shop: Shop, config: Config) -> float:
    """Rows a second."""
    run(config, once=True)
    idle_s = _run_s(config)
    shop.insert("orders", stage.rows)
    shop.end()
    capture(stage, shop, config)
    return stage.rows / (_run_s(config) - idle_s)


def _run_s(config: Config) -> float:
    began = time.monotonic()
    run(config, once=True)
    return time.monotonic() - began


def _by_spark(stage: Stage, config: Config) -> float:
    """Rows a second that Spark reads from the log's files and appends to a folder of Parquet."""
    lake = str(stage.lake(config, "orders"))
    there = f"{lake}_appended"
    files = DeltaTable(lake).file_uris()
    spark = SparkSession.getActiveSession()
    assert spark is not None
    rows = spark.read.parquet(*files)
    assert rows.count() == stage.rows + 1, "the log begins with a row for the first copy"
    began = time.monotonic()
    rows.write.mode("append").parquet(there)
    took = time.monotonic() - began
    shutil.rmtree(there)
    return stage.rows / took
