"""Ranges and composites as structs: copied, streamed, merged and verified."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import TablesUnfinished
from pgsluice.subscription.verify import Verification, verify

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.pg(">= 14")]

RANGES = """
[subscription.types]
"public.r.i" = "struct"
"public.r.d" = "struct"
"public.r.n" = "struct"
"public.r.m" = "struct"
"public.r.a" = "struct"
"""


def rows_of(one: Pipeline, table: str) -> dict[int, dict[str, Any]]:
    read = pa.RecordBatchReader.from_stream(one.delta(table).scan()).read_all().to_pylist()
    return {row["id"]: row for row in read}


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


@pytest.fixture
def ranges(database: MakeDatabase) -> Database:
    db = database()
    db.execute(
        "CREATE TABLE r (id int PRIMARY KEY, i int4range, d daterange, n numrange,"
        " m int4multirange, a int4range[], big text)",
        "ALTER TABLE r ALTER big SET STORAGE EXTERNAL, ALTER n SET STORAGE EXTERNAL",
        "INSERT INTO r VALUES (1, '[1,5)', '[2024-01-01,2024-02-01)', '(1.50,2.0]',"
        " '{[1,3),[7,9)}', ARRAY['[1,2)', NULL, 'empty']::int4range[], repeat('x', 3000)),"
        " (2, 'empty', '(,)', '[,1.5)', '{}', '{}', NULL), (3, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    return db


@pytest.mark.parametrize(
    ("merge", "binary"), [("on_read", ""), ("on_write", "binary = true")], ids=["text", "binary"]
)
def test_ranges_are_structs(
    ranges: Database, pipeline: MakePipeline, merge: str, binary: str
) -> None:
    one = pipeline(ranges, source=binary)
    one.sink_options = f', merge = "{merge}"'
    one.write(RANGES)
    one.once()
    ranges.execute(
        "UPDATE r SET i = '(,7)', a = NULL WHERE id = 1",  # big is not sent
        "UPDATE r SET m = '{(,)}', id = 20 WHERE id = 2",
        "INSERT INTO r VALUES (4, '[3,)', '[2024-01-01,infinity)', 'empty', '{(,1),[9,)}',"
        " '{empty}')",
        "DELETE FROM r WHERE id = 3",
    )
    one.once()
    rows = rows_of(one, "r")
    assert sorted(rows) == [1, 4, 20]
    assert rows[1]["i"] == range_of(None, 7)
    assert rows[1]["m"] == [range_of(1, 3, "[)"), range_of(7, 9, "[)")]
    assert rows[1]["n"] == range_of("1.50", "2.0", "(]")
    assert rows[1]["a"] is None
    assert rows[20]["m"] == [range_of(None, None)]
    assert rows[20]["i"] == {**range_of(None, None), "empty": True}
    assert rows[4]["d"] is None  # its upper bound does not fit: a reject
    assert_verified(one, "public.r")


def range_of(lower: object, upper: object, ends: str = "()") -> dict[str, Any]:
    return {
        "lower": lower,
        "upper": upper,
        "lower_inc": ends[0] == "[",
        "upper_inc": ends[1] == "]",
        "empty": False,
    }


def test_hstore_is_a_map(
    database: MakeDatabase, pipeline: MakePipeline, pg10: EmbeddedServer
) -> None:
    db = database(pg10)
    db.execute(
        "CREATE EXTENSION hstore",
        "CREATE TABLE h (id int PRIMARY KEY, v hstore)",
        "INSERT INTO h VALUES (1, 'a=>1'), (2, ''), (3, NULL), (4, 'b=>NULL')",
    )
    one = pipeline(db)
    one.write('[subscription.types]\n"public.h.v" = "map"\n')
    one.once()
    db.execute(
        "UPDATE h SET v = v || 'bb=>NULL' WHERE id = 1",
        "UPDATE h SET id = 20 WHERE id = 2",
        """INSERT INTO h VALUES (5, '"x y"=>"\\"q\\\\"')""",
        "DELETE FROM h WHERE id = 3",
    )
    one.once()
    rows = {number: row["v"] for number, row in rows_of(one, "h").items()}
    assert rows == {
        1: [("a", "1"), ("bb", None)],
        20: [],
        4: [("b", None)],
        5: [("x y", '"q\\')],
    }
    assert_verified(one, "public.h")


COMPOSITES = """
[subscription.types]
"public.c.p" = "struct"
"public.c.ps" = "struct"
"public.bag.p" = "struct"
"public.bag.ps" = "struct"
"""


@pytest.fixture
def composites(database: MakeDatabase) -> Database:
    db = database()
    db.execute(
        "CREATE TYPE inner_one AS (r int4range, note text)",
        "CREATE TYPE address AS (street text, number int, within inner_one, d date)",
        "CREATE TABLE c (id int PRIMARY KEY, p address, ps address[], big text)",
        "ALTER TABLE c ALTER p SET STORAGE EXTERNAL, ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO c SELECT n, ROW('a \"b\" ' || n, n, ROW('[1,5)', NULL)::inner_one,"
        " '2024-01-01')::address, ARRAY[NULL, ROW('', n, NULL, NULL)::address]"
        " FROM generate_series(1, 5) n",
        "INSERT INTO c VALUES (6, ROW(repeat('x', 3000), 1, NULL, NULL)), (7, ROW(NULL, NULL, NULL,"
        " NULL)), (8, NULL)",
        "CREATE TABLE bag (p address, ps address[])",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT p, ps FROM c UNION ALL SELECT p, ps FROM c",
        "INSERT INTO bag VALUES (NULL, '{}'), (NULL, NULL), (ROW(NULL, NULL, NULL, NULL), NULL)",
    )
    return db


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_composites_are_structs(composites: Database, pipeline: MakePipeline, merge: str) -> None:
    """Also in a table without a key, whose rows are found by all of their values."""
    one = pipeline(composites)
    one.sink_options = f', merge = "{merge}"'
    one.write(COMPOSITES)
    one.once()
    composites.execute(
        "UPDATE c SET big = 'y', id = 60 WHERE id = 6",  # p is not sent
        "UPDATE c SET p.number = 77 WHERE id = 1",
        "UPDATE c SET p.d = 'infinity' WHERE id = 2",
        "DELETE FROM c WHERE id = 3",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE (p).number = 1)",
        "DELETE FROM bag WHERE ps = '{}'",
        "UPDATE bag SET p.street = 'z' WHERE p IS NOT DISTINCT FROM ROW(NULL, NULL, NULL,"
        " NULL)::address AND ps IS NULL",
        "UPDATE bag SET ps[1] = p WHERE (p).number = 2",
    )
    one.once()
    rows = rows_of(one, "c")
    assert sorted(rows) == [1, 2, 4, 5, 7, 8, 60]
    within = {"r": range_of(1, 5, "[)"), "note": None}
    day = date(2024, 1, 1)
    assert rows[1]["p"] == {"street": 'a "b" 1', "number": 77, "within": within, "d": day}
    assert rows[4]["ps"] == [None, {"street": "", "number": 4, "within": None, "d": None}]
    assert rows[2]["p"] is None  # its date does not fit: a reject
    assert rows[7]["p"] == {"street": None, "number": None, "within": None, "d": None}
    assert rows[8]["p"] is None
    assert rows[60]["p"]["street"] == "x" * 3000
    assert_verified(one, "public.c", "public.bag")


def test_a_composite_with_other_attributes_is_copied_again(
    composites: Database, pipeline: MakePipeline
) -> None:
    one = pipeline(composites)
    one.write(COMPOSITES)
    one.once()
    for statement in (
        "ALTER TYPE address ADD ATTRIBUTE zip text",
        "ALTER TYPE address RENAME ATTRIBUTE street TO road",
        "ALTER TYPE inner_one DROP ATTRIBUTE note, ADD ATTRIBUTE other text",
    ):
        composites.execute(
            "INSERT INTO c SELECT max(id) + 1, (SELECT p FROM c WHERE id = 1) FROM c",
            statement,
            "INSERT INTO c SELECT max(id) + 1, (SELECT p FROM c WHERE id = 1) FROM c",
        )
        one.once()
        one.once()
        assert_verified(one, "public.c")
    rows = rows_of(one, "c")
    assert rows[1]["p"].keys() == {"road", "number", "within", "d", "zip"}
    assert rows[14]["p"]["within"] == {"r": range_of(1, 5, "[)"), "other": None}


def test_columns_that_cannot_be_structs_park_their_table(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    db = database()
    db.execute(
        "CREATE TYPE nothing AS ()",
        'CREATE TYPE twice AS (a int, "A" int)',
        "CREATE TABLE plain (id int PRIMARY KEY, v text)",
        "CREATE TABLE empty (id int PRIMARY KEY, v nothing)",
        "CREATE TABLE names (id int PRIMARY KEY, v twice)",
        "CREATE TABLE keys (id int4range PRIMARY KEY, v int)",
        "INSERT INTO keys VALUES ('[1,2)', 1)",
    )
    one = pipeline(db)
    chosen = ("plain.v", "empty.v", "names.v", "keys.id")
    one.write("[subscription.types]\n" + "".join(f'"public.{c}" = "struct"\n' for c in chosen))
    with pytest.raises(TablesUnfinished):
        one.once()
    errors = {each.name: each.error or "" for each in one.record().tables.values()}
    for table in ("plain", "empty", "names"):
        assert "cannot be stored as that" in errors[table]
    assert "which cannot be a key" in errors["keys"]


MODES = {
    "current": "",
    "changelog": 'mode = "changelog"',
    "history": 'mode = "history"',
    "deleted": 'deleted_column = "gone_at"',
}
IN_STORE = """
[subscription.types]
"public.t.p" = "struct"
"public.t.ps" = "struct"
"public.t.r" = "struct"
"public.t.j" = "variant"
"""


@pytest.mark.soak
@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize("mode", MODES)
def test_structs_in_partitions_of_a_store(
    database: MakeDatabase, pipeline: MakePipeline, s3_store: ObjectStore, mode: str, merge: str
) -> None:
    """Structs, arrays of them and VARIANTs in tables with partitions, in each mode."""
    db = database()
    value = "ROW(i, 'one')::pair, ARRAY[ROW(i, NULL)::pair, NULL], int4range(i, i + 2)"
    db.execute(
        "CREATE TYPE pair AS (n int, t text)",
        "CREATE TABLE t (id int PRIMARY KEY, region text, p pair, ps pair[], r int4range, j jsonb)",
        f"INSERT INTO t SELECT i, 'r' || i % 3, {value}, '{{\"a\": 1.10}}'"
        " FROM generate_series(1, 30) i",
    )
    one = pipeline(db)
    one.sink_options = f', merge = "{merge}", partition_by = {{ "public.t" = ["region"] }}'
    one.have_store(s3_store)
    one.write(MODES[mode] + IN_STORE)
    one.once()
    db.execute(
        "UPDATE t SET p.t = 'two', region = 'r9' WHERE id < 5",
        "DELETE FROM t WHERE id = 7",
        "UPDATE t SET r = 'empty', j = '[null]', ps = NULL WHERE id = 8",
        "UPDATE t SET id = 100 WHERE id = 9",
        f"INSERT INTO t SELECT i, NULL, {value}, NULL FROM generate_series(40, 42) i",
        "ALTER TABLE t ADD more pair DEFAULT ROW(1, 'x')::pair",
    )
    one.once()
    assert_verified(one, "public.t")
    assert one.delta("t").metadata().partition_columns == ["region"]
    assert not one.lake.exists(), "nothing is on the disk"
