"""Spark with Delta's jar reads and maintains tables with VARIANT columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.pipeline.test_variants import assert_verified, texts_of
from tests.support.databases import MakeDatabase
from tests.support.delta_spark import delta_spark
from tests.support.pipeline import MakePipeline

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine")]

DOCUMENT = '{"a": {"b": 7, "é": [1.10, null, true, "x", 12345678901234567890]}, "zz": -0.5}'


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_spark_reads_variants(
    database: MakeDatabase, pipeline: MakePipeline, tmp_path: Path, merge: str
) -> None:
    db = database()
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v jsonb)",
        f"INSERT INTO t VALUES (1, '{DOCUMENT}'), (2, NULL), (3, 'null'), (4, '[]')",
    )
    one = pipeline(db)
    one.sink_options = f', merge = "{merge}"'
    one.write('json = "variant"\n')
    one.once()
    db.execute(
        'UPDATE t SET v = \'{"a": {"b": 8}}\' WHERE id = 4',
        'ALTER TABLE t ADD w json DEFAULT \'{"b": 1,  "a": 2}\'',
    )
    one.once()
    table = f"delta.`{one.target('t')}`"
    query = (
        "SELECT id, v:a.b::int AS number, v:a.`é`[0]::decimal(4,2) AS exact, to_json(v) AS text,"
        " schema_of_variant(v) AS shape, typeof(v) AS type, v IS NULL AS is_null,"
        f" to_json(w) AS w FROM {table} ORDER BY id"
    )
    with delta_spark(tmp_path) as spark:
        rows = spark.rows(query)
        assert [row["number"] for row in rows] == [7, None, None, 8]
        assert [row["is_null"] for row in rows] == [False, True, False, False]
        assert {row["type"] for row in rows} == {"variant"}
        assert {row["w"] for row in rows} == {'{"a":2,"b":1}'}
        assert str(rows[0]["exact"]) == "1.10"
        assert json.loads(str(rows[0]["text"])) == json.loads(DOCUMENT)
        assert rows[2]["text"] == "null"
        spark.sql(f"OPTIMIZE {table}")
        spark.checkpoint(one.target("t"))
        db.execute("UPDATE t SET v = '[1]' WHERE id = 2", "DELETE FROM t WHERE id = 4")
        one.once()
        assert [row["text"] for row in spark.rows(query)][1:] == ["[1]", "null"]
    assert texts_of(one, "t", "v")[2] == "[1]"
    assert_verified(one, "public.t")
