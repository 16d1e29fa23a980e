"""The modes of subscriptions: sequences of DDL in each, and the query of docs/modes.md in Spark."""

from __future__ import annotations

import os

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.soak.report import Report
from tests.support.change_logs import by_loop, by_query, query
from tests.support.databases import MakeDatabase
from tests.support.ddl.row import Moment
from tests.support.local_spark import local_spark as local_spark
from tests.support.oracle import DELETED_COLUMN
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.sequences import columns
from tests.support.sequences.running import render, run_drawn

from pgsluice.changes.change_log import LogColumns
from pgsluice.embedded import EmbeddedServer
from pgsluice.lsn import Lsn
from pgsluice.spark.versions import SparkVersion
from pgsluice.testing.changes import ABSENT, ChangesBuilder

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("status", pa.string()), ("note", pa.string())]
)
LOG = LogColumns("_")
COLUMNS = LOG.of_table(SCHEMA, "orders")

pytestmark = pytest.mark.soak
SEQUENCES = int(os.environ.get("PGSLUICE_SOAK_SEQUENCES", "300"))


def a_log() -> pa.Table:
    copied = pa.record_batch([[1, 2, 3], ["a", "b", "c"], ["one", "two", None]], schema=SCHEMA)
    t = ChangesBuilder(SCHEMA, position=110)
    t.update({"id": 1, "status": "a2", "note": ABSENT})
    t.update({"id": 7, "status": "moved", "note": ABSENT}, old={"id": 1})
    t.commit()
    t.update({"id": 8, "status": ABSENT, "note": ABSENT}, old={"id": 7})
    t.update({"id": 1, "status": "b1", "note": ABSENT}, old={"id": 2})
    t.delete({"id": 3})
    t.insert({"id": 3, "status": "again", "note": None})
    t.commit()
    t.delete({"id": 3})
    t.insert({"id": 2, "status": None, "note": "new"})
    added = {"note": pa.scalar("from a column", pa.string())}
    parts = [
        LOG.copy_begins(COLUMNS, Lsn(100), 1),
        LOG.copied(copied, COLUMNS, Lsn(100), 1),
        *LOG.rows([t.build()], COLUMNS).to_batches(),
        LOG.column_added(COLUMNS, Lsn(112), added, copy_number=1, version=5),
        LOG.copy_begins(COLUMNS, Lsn(120), 2),
        LOG.copied(copied.slice(1), COLUMNS, Lsn(120), 2),
    ]
    return pa.Table.from_batches(parts, COLUMNS)


@pytest.mark.skipif(
    SparkVersion.parse(pyspark.__version__) < (4, 1),
    reason="recursive queries came with Spark 4.1",
)
def test_the_query_in_spark(spark: SparkSession) -> None:
    log = a_log()
    spark.createDataFrame(log).createOrReplaceTempView("orders_log")
    for position in (100, 111, 112, 120):
        found = [row.asDict() for row in spark.sql(query(position)).collect()]
        found.sort(key=lambda row: repr([*row.values()]))
        assert found == by_query(log, position) == by_loop(log, ["id"], position), position
    assert by_loop(log, ["id"], 111) == [
        {"id": 1, "status": "b1", "note": "two"},
        {"id": 3, "status": "again", "note": None},
        {"id": 8, "status": "moved", "note": "one"},
    ]


@pytest.mark.usefixtures("local_spark")
@pytest.mark.pg(">= 12")
@pytest.mark.parametrize("mode", ['mode = "changelog"', f'deleted_column = "{DELETED_COLUMN}"'])
@pytest.mark.parametrize("moment", [Moment.STOPPED, Moment.SEVERAL_POLLS])
def test_sequences_of_ddl_in_each_mode(
    server: EmbeddedServer,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    report: Report,
    seed: int,
    mode: str,
    moment: Moment,
) -> None:
    monkeypatch.setattr(Pipeline, "subscription_options", mode)
    version = server.programs.major
    drawn = [columns.draw(seed, number, moment, version) for number in range(SEQUENCES)]
    what = f"sequences on columns, {moment.value}, {mode}, PostgreSQL {version}"
    with report.row(what, seed) as row:
        verdicts = run_drawn(pipeline, database, drawn, moment)
        wrong = [one for one in verdicts if one.seen.differences]
        parked = sorted({error for one in verdicts for error in one.seen.errors})
        row["figures"] = f"{len(verdicts)} sequences; reasons to park: {len(parked)}"
        failed = [render(one, moment, version) for one in wrong]
        assert not failed, "\n".join(failed)
        row["shown"] = "the table that follows from each target is the source's"
