"""json and jsonb as VARIANT: copied, streamed, merged and verified in each mode."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.errors import TablesUnfinished
from pgsluice.subscription.verify import Verification, verify
from pgsluice.verification.postgres_text import postgres_text

pytestmark = [pytest.mark.usefixtures("local_spark")]

MODES = {
    "lake": ('merge = "on_read"', ""),
    "on_write": ('merge = "on_write"', ""),
    "marked": ('merge = "on_read"', 'deleted_column = "gone"'),
    "log": ('merge = "auto"', 'mode = "changelog"'),
    "history": ('merge = "on_read"', 'mode = "history"'),
}
"""Subscriptions: an option of the sink, and one of the subscription."""


def write(one: Pipeline, *names: str) -> None:
    """Write a configuration with these subscriptions, of which the first is "lake"."""
    one.sink_options = f", {MODES['lake'][0]}"
    one.write(
        'json = "variant"\n'
        + "".join(
            f'[[subscription]]\nname = "{name}"\njson = "variant"\n{MODES[name][1]}\n'
            f'sink = {{ type = "delta", path = "{name}/{{schema}}/{{table}}", {MODES[name][0]} }}\n'
            for name in names[1:]
        )
    )


def read(one: Pipeline, table: str, lake: str = "lake") -> pa.Table:
    delta = DeltaTable(str(one.folder / lake / "public" / table))
    return pa.RecordBatchReader.from_stream(delta.scan()).read_all()


def texts_of(one: Pipeline, table: str, column: str, lake: str = "lake") -> dict[int, Any]:
    """The values as jsonb prints them, by id."""
    rows = read(one, table, lake)
    texts = postgres_text(rows[column].combine_chunks()).to_pylist()
    return dict(zip(rows["id"].to_pylist(), texts, strict=True))


def assert_verified(one: Pipeline, *tables: str) -> None:
    for subscription in one.config.subscriptions:
        for each in verify(one.config, subscription, Verification(tables)):
            assert each.comparison is not None, each
            assert each.comparison.equal, (subscription.name, each.comparison)


def test_json_is_a_variant_in_each_mode(database: MakeDatabase, pipeline: MakePipeline) -> None:
    """With values that are not sent, and new columns."""
    db = database()
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v jsonb, j json, n int)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT n, jsonb_build_object('n', n, 'long', repeat('x', 3000)),"
        ' \'{"b": 1.10,  "a": [ ]}\' FROM generate_series(1, 5) n',
        "INSERT INTO t VALUES (10, NULL, NULL), (11, 'null', 'null')",
    )
    one = pipeline(db, source="binary = true")
    write(one, "lake", "on_write", "marked", "log", "history")
    one.once()
    db.execute(
        "UPDATE t SET n = 1 WHERE id = 1",  # v is not sent
        "UPDATE t SET id = 20 WHERE id = 2",
        "UPDATE t SET v = jsonb_build_object('long', repeat('y', 3000)), j = '[1 , 2]'"
        " WHERE id IN (3, 10)",
        "UPDATE t SET v = NULL WHERE id = 4",
        "DELETE FROM t WHERE id = 5",
        """ALTER TABLE t ADD w jsonb DEFAULT '{"new": [0.50]}', ADD e json""",
        """INSERT INTO t (id, v, w, e) VALUES (30, '"a"', 'null', '{"x": "\\ud83d\\udc18"}')""",
    )
    one.once()
    assert_verified(one, "public.t")
    for lake in ("lake", "on_write"):
        values = texts_of(one, "t", "v", lake)
        assert sorted(values) == [1, 3, 4, 10, 11, 20, 30]
        assert values[20] == '{"n": 2, "long": "' + "x" * 3000 + '"}'
        assert (values[11], values[4], values[30]) == ("null", None, '"a"')
        assert texts_of(one, "t", "j", lake)[1] == '{"a": [], "b": 1.10}'
        assert texts_of(one, "t", "w", lake)[1] == '{"new": [0.50]}'
        assert texts_of(one, "t", "e", lake)[30] == '{"x": "🐘"}'
    assert one.delta("t").protocol().reader_features == ["deletionVectors", "variantType"]


def test_what_a_variant_cannot_hold_is_a_reject(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Rows of a table without a key are found by their VARIANTs."""
    db = database()
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v jsonb, j json)",
        """INSERT INTO t VALUES (1, '1e40', '1e400'), (2, '{}', '{"a": 1,  "a": 2}'),"""
        """ (3, '[]', '"\\u0000"'), (4, '4', '4')""",
        "CREATE TABLE bag (v jsonb)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        """INSERT INTO bag VALUES ('{"b": 1, "a": 2.0}'), ('{"a": 2.0, "b": 1}'),"""
        """ ('{"a": 2, "b": 1}'), (NULL), ('null')""",
    )
    one = pipeline(db)
    write(one, "lake", "on_write", "log")
    one.once()
    assert texts_of(one, "t", "v") == {1: None, 2: "{}", 3: "[]", 4: "4"}
    assert texts_of(one, "t", "j") == {1: None, 2: None, 3: None, 4: "4"}
    assert one.table("t").rejects == 4
    assert_verified(one, "public.t", "public.bag")
    db.execute(
        "UPDATE t SET v = '1' WHERE id = 1",
        "UPDATE t SET j = '\"\\ud83d\"' WHERE id = 4",
        """DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v @> '{"a": 2}')""",
        """UPDATE bag SET v = '{"é": true}' WHERE v IS NULL""",
    )
    one.once()
    assert texts_of(one, "t", "j") == {1: None, 2: None, 3: None, 4: None}
    assert_verified(one, "public.t", "public.bag")
    bag = postgres_text(read(one, "bag")["v"].combine_chunks()).to_pylist()
    assert sorted(bag) == ["null", '{"a": 2, "b": 1}', '{"a": 2.0, "b": 1}', '{"é": true}']


def test_a_column_of_a_table_is_a_variant(database: MakeDatabase, pipeline: MakePipeline) -> None:
    """By ``types``; masked columns stay texts, and an existing table gets the protocol's feature
    with its first such column."""
    db = database()
    db.execute(
        "CREATE DOMAIN document AS jsonb",
        "CREATE TABLE t (id int PRIMARY KEY, plain jsonb, secret jsonb, list jsonb[])",
        "INSERT INTO t VALUES (1, '[1]', '{\"card\": 4111}', ARRAY['{}']::jsonb[])",
    )
    one = pipeline(db)
    one.write('types = { "public.t.v" = "variant" }\nmask = { "public.t.secret" = "last4" }\n')
    one.once()
    assert one.delta("t").protocol().reader_features is None
    db.execute("ALTER TABLE t ADD v document", "UPDATE t SET v = '{\"a\": 1}'")
    one.once()
    one.once()
    assert read(one, "t").drop_columns(["v"]).to_pylist() == [
        {"id": 1, "plain": "[1]", "secret": "****111}", "list": ["{}"]}
    ]
    assert texts_of(one, "t", "v") == {1: '{"a": 1}'}
    assert one.delta("t").protocol().reader_features == ["variantType"]
    assert_verified(one, "public.t")


def test_a_table_with_another_setting_is_copied_again_and_a_key_cannot_be_a_variant(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    db = database()
    db.execute(
        "CREATE TABLE k (v jsonb PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, v jsonb)",
        "INSERT INTO t VALUES (1, '[1]')",
    )
    one = pipeline(db)
    one.once()
    assert read(one, "t").to_pylist() == [{"id": 1, "v": "[1]"}]
    one.write('json = "variant"\n')
    db.execute("INSERT INTO t VALUES (2, '[2]')", "INSERT INTO k VALUES ('1')")
    with pytest.raises(TablesUnfinished, match="is variant in the target, which cannot be a key"):
        one.once()
    assert texts_of(one, "t", "v") == {1: "[1]", 2: "[2]"}
    one.write('json = "variant"\ntypes = { "public.k.v" = "string" }\n')
    one.copy("public.k")
    one.once()
    assert read(one, "k").to_pylist() == [{"v": "1"}]
    assert_verified(one, "public.t", "public.k")
