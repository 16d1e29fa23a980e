"""Spark with Delta's jar as a writer beside a run, in S3, where it may overwrite commits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import polars as pl
from tests.sinks.delta_duckdb import duckdb_rows
from tests.support.delta_spark import DeltaSpark
from tests.support.pipeline import Pipeline
from tests.support.store_proxy import Request, StoreProxy
from tests.support.waiting import HANGS_S, await_that

_COMMIT = re.compile(r"/_delta_log/\d{20}\.json")


def overwrite_by_spark(
    spark: DeltaSpark, statement: str, proxy: StoreProxy, ours: Callable[[], object]
) -> None:
    """Run a statement of Spark, and between its check of a commit's name and its write our commits.

    Args:
        proxy: by which Spark reaches the store.
        ours: commits the same version, and perhaps later ones.
    """
    arrived, released = threading.Event(), threading.Event()

    def choose(request: Request) -> None:
        if request.method == "PUT" and _COMMIT.search(request.path) and not arrived.is_set():
            arrived.set()
            released.wait(HANGS_S)

    proxy.choose = choose
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(spark.sql, statement)
        try:
            await_that(lambda: arrived.is_set() or done.done(), "Spark writes a commit")
            ours()
        finally:
            released.set()
        done.result()
    assert arrived.is_set(), f"{statement} has written a commit"
    proxy.choose = None


def spark_name(one: Pipeline, table: str) -> str:
    """A target's name in Spark's SQL."""
    return f"delta.`{one.target(table).replace('s3://', 's3a://')}`"


def assert_all_read(one: Pipeline, spark: DeltaSpark, table: str) -> None:
    """deltalake, polars, DuckDB and Spark find the source's rows of a table (id, n)."""
    one.assert_equal(table)  # read by deltalake
    target, options = one.target(table), one.reading_options
    expected = [
        {"id": id_, "n": n}
        for id_, n in one.database.execute(f"SELECT id, n FROM {table} ORDER BY id")
    ]
    by_polars = pl.read_delta(target, storage_options=dict(options)).sort("id").to_dicts()
    by_spark = spark.rows(f"SELECT id, n FROM {spark_name(one, table)} ORDER BY id")
    by_duckdb = sorted(duckdb_rows(target, options), key=lambda row: row["id"])
    assert by_polars == by_spark == by_duckdb == expected
