"""Tables without a key: a change finds one of the rows that are equal to the old row."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.subscription.verify import Verification, verify

BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 120))"

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("keyless")]


def rows_of(one: Pipeline, table: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = (
        pa.RecordBatchReader.from_stream(one.delta(table).scan()).read_all().to_pylist()
    )
    return read


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


TABLES = (
    "CREATE TABLE bag (a int, n numeric, f float8, j jsonb, b text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO bag SELECT 1, 1.0, 'NaN', '{\"x\": 1}', 'x' FROM generate_series(1, 3)",
    "INSERT INTO bag SELECT 1, 1.00, '-0', NULL, 'x' FROM generate_series(1, 3)",
    "INSERT INTO bag SELECT NULL, NULL, 0, NULL, NULL FROM generate_series(1, 3)",
    "CREATE TABLE toasted (a int, b text)",
    "ALTER TABLE toasted REPLICA IDENTITY FULL, ALTER b SET STORAGE EXTERNAL",
    f"INSERT INTO toasted SELECT i % 2, b FROM (SELECT {BIG} b) big, generate_series(1, 4) i",
    "CREATE TABLE parts (a int, b int) PARTITION BY LIST (a)",
    "CREATE TABLE parts_1 PARTITION OF parts (PRIMARY KEY (a, b)) FOR VALUES IN (1)",
    "CREATE TABLE parts_2 PARTITION OF parts (PRIMARY KEY (b)) FOR VALUES IN (2)",
    "CREATE TABLE parts_3 PARTITION OF parts FOR VALUES IN (3)",
    *(f"ALTER TABLE parts_{number} REPLICA IDENTITY FULL" for number in (1, 2, 3)),
    "INSERT INTO parts VALUES (1, 1), (1, 2), (2, 1), (3, 1), (3, 1)",
    "CREATE TABLE grown (a int, b int)",
    "ALTER TABLE grown REPLICA IDENTITY FULL",
    "INSERT INTO grown SELECT i % 3, i % 2 FROM generate_series(1, 12) i",
)
CHANGES = (
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE f = 'NaN')",
    "UPDATE bag SET f = 0 WHERE ctid = (SELECT min(ctid) FROM bag WHERE n::text = '1.00')",
    "UPDATE bag SET b = 'x', a = 1 WHERE ctid = (SELECT min(ctid) FROM bag WHERE b IS NULL)",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a IS NULL)",
    "UPDATE toasted SET a = 5 WHERE ctid = '(0,1)'",
    "DELETE FROM toasted WHERE ctid = '(0,2)'",
    "UPDATE parts SET b = b + 10 WHERE a = 1",
    "UPDATE parts SET a = 3, b = 1 WHERE a = 2",
    "DELETE FROM parts WHERE ctid = (SELECT min(ctid) FROM parts_3) AND a = 3",
    "BEGIN",
    "INSERT INTO grown VALUES (7, 7), (7, 7)",
    "DELETE FROM grown WHERE ctid = '(0,1)'",
    "ALTER TABLE grown ADD c int DEFAULT 7",
    "UPDATE grown SET c = 8 WHERE ctid IN (SELECT ctid FROM grown WHERE a = 2 LIMIT 2)",
    "DELETE FROM grown WHERE ctid = (SELECT max(ctid) FROM grown WHERE a = 7)",
    "COMMIT",
    "UPDATE grown SET b = 9 WHERE ctid = (SELECT min(ctid) FROM grown WHERE c = 7)",
    "ALTER TABLE grown DROP b",
    "DELETE FROM grown WHERE ctid = (SELECT min(ctid) FROM grown WHERE a = 1)",
    "UPDATE grown SET a = 4 WHERE ctid = (SELECT min(ctid) FROM grown WHERE a = 0)",
)


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_one_of_equal_rows_is_changed(
    database: MakeDatabase, pipeline: MakePipeline, merge: str
) -> None:
    """Rows that differ in NULL, NaN, -0, a numeric's scale or a large value; partitions with other
    keys; columns that come and go within a batch."""
    shop = database()
    shop.execute(*TABLES)
    # pgsluice's would send only inserts of parts: a new partition would have no replica identity.
    shop.execute(f"CREATE PUBLICATION {shop.name} FOR TABLE bag, toasted, parts, grown")
    one = pipeline(shop)
    one.sink_options = f', merge = "{merge}"'
    one.write()
    one.once()
    shop.execute(*CHANGES)
    one.once()
    assert_verified(one, "public.bag", "public.toasted", "public.parts", "public.grown")
    assert {one.table(name).rows_skipped for name in ("bag", "toasted", "parts", "grown")} == {0}
    assert {one.table(name).copy_number for name in ("bag", "toasted", "parts")} == {1}
    shop.execute("TRUNCATE bag, toasted", "INSERT INTO bag (a) VALUES (1), (1)")
    shop.execute("DELETE FROM bag WHERE ctid = '(0,1)'")
    one.once()
    assert [row["a"] for row in rows_of(one, "bag")] == [1]
    assert not rows_of(one, "toasted")


SOME = "ctid IN (SELECT ctid FROM bag ORDER BY random() LIMIT {})"


def statement(rng: random.Random, number: int) -> str:
    """A random change of a table with few different rows; the number is in names of columns."""
    some, few = SOME.format(rng.randint(1, 4)), rng.randint(1, 3)
    many, back = f"FROM generate_series(1, {rng.randint(1, 6)})", "ROLLBACK TO s; COMMIT"
    chosen = rng.choices(
        [
            f"INSERT INTO bag (a, b) SELECT {few}, NULLIF({rng.randint(0, 2)}, 0) {many}",
            f"UPDATE bag SET a = {few} WHERE {some}",
            f"UPDATE bag SET b = NULL WHERE {some}",
            f"DELETE FROM bag WHERE {some}",
            f"DELETE FROM bag WHERE a = {few} AND b IS NULL",
            "TRUNCATE bag",
            f"ALTER TABLE bag DROP IF EXISTS c{number - 20}",
            f"ALTER TABLE bag ADD IF NOT EXISTS c{number} int DEFAULT {few}",
            f"BEGIN; UPDATE bag SET b = 5; SAVEPOINT s; DELETE FROM bag WHERE {some}; {back}",
        ],
        weights=[6, 6, 2, 5, 1, 0.3, 0.3, 0.6, 1],
    )
    return chosen[0]


def run_random(one: Pipeline, rng: random.Random, runs: int, statements: int) -> None:
    """Random changes, and after each run the same rows, as often."""
    shop = one.database
    shop.execute(
        "CREATE TABLE bag (a int, b int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 3, NULLIF(i % 4, 0) FROM generate_series(1, 40) i",
    )
    one.once()
    numbers = count()
    for _ in range(runs):
        for _ in range(statements):
            shop.execute(*statement(rng, next(numbers) // 10 * 10).split("; "))
        one.once()
        assert_verified(one, "public.bag")
        assert one.table("bag").rows_skipped == 0


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_random_changes_of_few_different_rows(
    database: MakeDatabase, pipeline: MakePipeline, merge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in pieces, as a large transaction is applied."""
    if merge == "on_read":
        large = "pgsluice.subscription.batches.tasks.large_batch"
        monkeypatch.setattr(f"{large}.LARGE_BYTES", 256)
        monkeypatch.setattr(f"{large}.PIECE_BYTES", 512)
    one = pipeline(database())
    one.sink_options = f', merge = "{merge}"'
    one.write()
    run_random(one, random.Random(merge), 2, 30)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bag SET b = 3 WHERE a = 1",
        pytest.param("DELETE FROM bag", marks=pytest.mark.soak),
    ],
)
def test_rows_that_the_target_lacks_have_it_verified(
    database: MakeDatabase, pipeline: MakePipeline, change: str
) -> None:
    """A skipped change says that the target differs; what it differs in need not be that row."""
    shop = database()
    shop.execute(
        "CREATE TABLE bag (a int, b int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 3, 0 FROM generate_series(1, 40) i",
    )
    one = pipeline(shop, extra='foreign_writes = "allow"')
    one.once()
    one.delta("bag").delete("a = 1")
    write_deltalake(one.delta("bag"), pa.table({"a": [5], "b": [5]}), mode="append")
    shop.execute(change)
    one.once()
    assert one.table("bag").rows_skipped > 0
    assert "differs" in one.table("bag").copied.reason
    one.assert_equal("bag")
    shop.execute("INSERT INTO bag VALUES (1, 1), (1, 1)", "DELETE FROM bag WHERE ctid = '(0,1)'")
    one.once()
    one.assert_equal("bag")
    assert not one.table("bag").pending.verification
