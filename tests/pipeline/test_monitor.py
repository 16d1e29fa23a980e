"""A run with ``[monitor]`` serves what it has done to each table."""

from __future__ import annotations

import pytest
from tests.monitor.test_http_server import ask, free_port
from tests.monitor.test_metrics import Series, scraped
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline

from pgsluice.monitor.metrics.counters import RunCounters
from pgsluice.monitor.metrics.serving import monitoring
from pgsluice.spool import TableState

LAKE = "subscription='lake'"
TABLE = f"schema='public',{LAKE},table='t'"


@pytest.mark.usefixtures("local_spark")
def test_a_run_serves_what_it_has_done(pipeline: MakePipeline, database: MakeDatabase) -> None:
    shop, port = database(), free_port()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i",
    )
    one = pipeline(shop, extra=f'[monitor]\nlisten = "127.0.0.1:{port}"\ntables = true')
    counters, series = RunCounters(["lake"]), Series()

    def rows(action: str) -> float:
        return series[f"pgsluice_table_rows_total{{action={action!r},{TABLE}}}"]

    with monitoring(one.config, counters), one.live(report=counters):
        one.wait_until(one.spool.exists)
        one.wait_applied()
        shop.execute(
            "INSERT INTO t SELECT i, 'x' FROM generate_series(101, 110) i",
            "UPDATE t SET v = 'y' WHERE id <= 5",
            "DELETE FROM t WHERE id IN (6, 7)",
        )
        one.wait_applied()
        one.wait_until(lambda: one.table("t").state is TableState.READY)
        one.wait_until(lambda: ask(port, "/readyz") == (200, b"ready\n"), why="it is ready")
        series = scraped(one.config)
    assert (rows("insert"), rows("update"), rows("delete")) == (10, 5, 2)
    for action in ("insert", "update", "delete"):
        of_all = series[f"pgsluice_subscription_rows_total{{action={action!r},{LAKE}}}"]
        assert of_all == rows(action)
    assert series[f"pgsluice_copied_rows_total{{{LAKE}}}"] == 100
    assert series[f"pgsluice_copied_tables_total{{{LAKE}}}"] == 1
    assert series[f"pgsluice_table_changes_total{{{TABLE}}}"] == one.table("t").rows
    assert series[f"pgsluice_table_state{{schema='public',state='ready',{LAKE},table='t'}}"] == 1
    assert series[f"pgsluice_subscription_running{{{LAKE}}}"] == 1
    assert series[f"pgsluice_subscription_lag_seconds{{{LAKE}}}"] == 0
    merges = series[f"pgsluice_subscription_merges_total{{{LAKE}}}"]
    assert merges >= 1
    assert series[f"pgsluice_subscription_commit_to_visible_seconds_count{{{LAKE}}}"] == merges
    assert series[f"pgsluice_subscription_merge_bytes_total{{{LAKE}}}"] > 0
    assert series["pgsluice_spark_tasks_total"] >= series["pgsluice_spark_jobs_total"] > 0
    assert series["pgsluice_ready"] == 1
    for name in ("run", "capture"):
        assert series[f"pgsluice_process_cpu_seconds_total{{process={name!r}}}"] > 0
        assert series[f"pgsluice_process_resident_memory_bytes{{process={name!r}}}"] > 0
