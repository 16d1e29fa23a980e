"""Spark with Delta's jar reads and maintains tables with VARIANT columns, also Spark 4.0 and 4.1
(``PGSLUICE_SPARK_PYTHON``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.pipeline.test_variants import assert_verified, texts_of
from tests.support.databases import MakeDatabase
from tests.support.delta_spark import delta_spark, spark_version
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
    number, exact = "v:a.b::int", "v:a.`é`[0]::decimal(4,2)"
    if spark_version() in ("4.0", "4.1"):  # without the operator for paths
        number = "variant_get(v, '$.a.b', 'int')"
        exact = "variant_get(v, '$.a.é[0]', 'decimal(4,2)')"
    query = (
        f"SELECT id, {number} AS number, {exact} AS exact, to_json(v) AS text,"
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


def many(names: Iterable[str]) -> str:
    return json.dumps({name: number for number, name in enumerate(names)}, ensure_ascii=False)


HIGH = (
    "\U0001f600",
    "\uff01",
    "\ue000x",
    "a\U0001f600",
    "a\ufb01",
    "\ud7ff",
    "é",
    "",
    " ",
    "a.b",
    '"',
)
"""Names of which some are in another order as UTF-16 than as UTF-8."""
OBJECTS = {
    "few": many(HIGH),
    "31": many([*HIGH[:3], *(f"k{n}" for n in range(28))]),
    "32": many([*HIGH[5:], *(f"k{n}" for n in range(32))]),
    "256": many(f"{n:x}" for n in range(256)),
    "70,000": many(f"k{n}" for n in range(70_000)),
}


def test_spark_finds_each_name(
    database: MakeDatabase, pipeline: MakePipeline, tmp_path: Path
) -> None:
    """Readers search in large objects by halves, in the order that they expect."""
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v jsonb)")
    with db.connect() as connection:
        for number, text in enumerate(OBJECTS.values()):
            connection.execute("INSERT INTO t VALUES (%s, %s)", [number, text])
    one = pipeline(db)
    one.write('json = "variant"\n')
    one.once()
    with delta_spark(tmp_path) as spark:
        for number, (which, text) in enumerate(OBJECTS.items()):
            document = json.loads(text)
            chosen = [*document][:40] + [*document][-5:]
            paths = ", ".join(
                f"variant_get(v, '$[\"{name}\"]', 'int') AS c{n}"
                for n, name in enumerate(chosen)
                if '"' not in name
            )
            table = f"delta.`{one.target('t')}`"
            [row] = spark.rows(
                f"SELECT {paths}, to_json(v) AS text FROM {table} WHERE id = {number}"
            )
            assert json.loads(str(row["text"])) == document, which
            found = {name: row[f"c{n}"] for n, name in enumerate(chosen) if '"' not in name}
            assert found == {name: document[name] for name in found}, which
