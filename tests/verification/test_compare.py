"""A comparison finds every difference, and only differences."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from psycopg import sql
from tests.support.arrow_rows import ArrowRows
from tests.support.examples import examples
from tests.support.oracle import assert_equal, compare_exact

import pgsluice.verification
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import PgsluiceError
from pgsluice.verification import ComparedTable, Extent, compare
from pgsluice.verification.page_ranges import page_ranges

# Generated columns, and floats in their shortest form; the oldest server has its own test.
pytestmark = pytest.mark.pg(">= 12")
Connection = psycopg.Connection[Any]
TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE DOMAIN price AS numeric(8, 2);
    CREATE TABLE kinds (
        id int8 PRIMARY KEY, flag bool, small int2, single float4, double float8,
        exact numeric(10, 4), loose numeric, chosen numeric, approximate numeric,
        priced price, words text, fixed char(5), bytes bytea, day date,
        moment timestamptz, wall timestamp, clock time, token uuid, doc jsonb, raw json,
        feeling mood, tags text[], numbers numeric(6, 2)[], chosen_numbers numeric[],
        doubled int8 GENERATED ALWAYS AS (id * 2) STORED);
    INSERT INTO kinds (id) VALUES (2);
    INSERT INTO kinds VALUES
        (1, true, -5, 1.1, 1e-7, 1.5, 1.50, 1.5, 0.1, 9.9, 'it''s', 'ab', '\\x00ff', '2024-02-29',
         '2024-01-02 03:04:05.6+02', '0044-03-15 12:00 BC', '23:59:59.5',
         '6b9d2a50-7e58-4d5f-9b5a-0a8f0d1c2b3a', '{"b": [1, "x"], "a": null}', '{"b" :1}',
         'sad', '{a,NULL,"b c"}', '{1.50,NULL}', '{1,2.5}'),
        (3, false, 7, 'NaN', '-0', -0.0001, 12345678901234567890.123, -3, 'NaN', -1,
         '', '', '', '0001-01-01 BC', '10000-01-01 00:00+00', '294246-01-01', '00:00',
         '00000000-0000-0000-0000-000000000000', '[]', 'null', 'ok', '{}', '{NaN}', '{}');
"""


def kinds() -> pa.Table:
    """What a target of ``kinds`` holds, written by hand."""
    utc = pa.timestamp("us", "UTC")
    columns: dict[str, pa.Array] = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "flag": pa.array([True, None, False]),
        "small": pa.array([-5, None, 7], pa.int16()),
        "single": pa.array([1.1, None, float("nan")], pa.float32()),
        "double": pa.array([1e-7, None, -0.0]),
        "exact": pa.array([Decimal("1.5"), None, Decimal("-0.0001")], pa.decimal128(10, 4)),
        "loose": pa.array(["1.50", None, "12345678901234567890.123"]),
        "chosen": pa.array([Decimal("1.5"), None, Decimal(-3)], pa.decimal128(38, 6)),
        "approximate": pa.array([0.1, None, float("nan")]),
        "priced": pa.array([Decimal("9.9"), None, Decimal(-1)], pa.decimal128(8, 2)),
        "words": pa.array(["it's", None, ""]),
        "fixed": pa.array(["ab   ", None, "     "]),
        "bytes": pa.array([b"\x00\xff", None, b""]),
        "day": pa.array([19782, None, -719_528], pa.int32()).cast(pa.date32()),
        "moment": pa.array([1704157445600000, None, 253402300800000000], utc),
        "wall": pa.array([-63_517_780_800_000_000, None, 9_223_339_708_800_000_000],
                         pa.timestamp("us")),
        "clock": pa.array(["23:59:59.5", None, "00:00:00"]),
        "token": pa.array(["6b9d2a50-7e58-4d5f-9b5a-0a8f0d1c2b3a", None,
                           "00000000-0000-0000-0000-000000000000"]),
        "doc": pa.array(['{"a": null, "b": [1, "x"]}', None, "[]"]),
        "raw": pa.array(['{"b" :1}', None, "null"]),
        "feeling": pa.array(["sad", None, "ok"]),
        "tags": pa.array([["a", None, "b c"], None, []], pa.list_(pa.string())),
        "numbers": pa.array([["1.50", None], None, ["NaN"]], pa.list_(pa.string())),
        "chosen_numbers": pa.array([[Decimal(1), Decimal("2.5")], None, []],
                                   pa.list_(pa.decimal128(38, 3))),
    }  # fmt: skip
    return pa.table(columns)


@pytest.fixture
def connection(database: Callable[[], Any]) -> Iterator[Connection]:
    with database().connect() as connection:
        yield connection


def test_every_type_equals_itself(connection: Connection, tmp_path: Path) -> None:
    connection.execute(TYPES)
    write_deltalake(tmp_path / "kinds", kinds())
    found = compare(connection, "public.kinds", tmp_path / "kinds")
    assert found.equal, str(found)
    assert found.source.rows == found.target.rows == 3
    assert_equal(connection, "public.kinds", tmp_path / "kinds")


def test_a_null_in_any_column_is_found(connection: Connection) -> None:
    connection.execute(TYPES)
    for column in kinds().schema.names[1:]:
        kept = ["id", column]
        table = kinds().select(kept)
        broken = table.set_column(1, column, pa.nulls(3, table.schema.field(column).type))
        found = compare(connection, "public.kinds", ArrowRows(broken), columns=kept)
        assert found.differing_keys == (("1",), ("3",)), column


WORDS = """
    CREATE TABLE "Odd.Name" (a int4, "B %s b" text, v text, PRIMARY KEY ("B %s b", a));
    INSERT INTO "Odd.Name" SELECT i, 'k' || i % 7, 'v' || i FROM generate_series(1, 5000) i
"""


def words() -> pa.Table:
    numbers = range(1, 5001)
    return pa.table({
        "v": [f"v{i}" for i in numbers], "a": pa.array(numbers, pa.int32()),
        "B %s b": [f"k{i % 7}" for i in numbers],
    })  # fmt: skip


def test_differences_are_named_by_key(connection: Connection) -> None:
    connection.execute(WORDS)
    good = words()
    rows = ArrowRows(good)
    assert compare(connection, "public.Odd.Name", rows).equal
    connection.execute("""
        UPDATE "Odd.Name" SET v = 'other' WHERE a = 3000;
        DELETE FROM "Odd.Name" WHERE a = 17;
        INSERT INTO "Odd.Name" VALUES (6000, 'k', NULL)
    """)
    found = compare(connection, "public.Odd.Name", rows)
    assert not found.equal
    assert (found.source.rows, found.target.rows) == (5000, 5000)
    assert found.missing_keys == (("k", "6000"),)
    assert found.extra_keys == (("k3", "17"),)
    assert found.differing_keys == (("k4", "3000"),)
    assert str(found) == (
        "public.Odd.Name: 5000 rows at the source, 5000 here; missing: (k, 6000); "
        "not at the source: (k3, 17); differing: (k4, 3000)"
    )


def test_a_server_in_another_encoding(server: EmbeddedServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        try:
            with psycopg.connect(server.dsn("latin"), autocommit=True) as latin:
                latin.execute("CREATE TABLE t (v text PRIMARY KEY); INSERT INTO t VALUES ('é')")
                assert compare(latin, "public.t", ArrowRows(pa.table({"v": ["é"]}))).equal
                found = compare(latin, "public.t", ArrowRows(pa.table({"v": ["e"]})))
                assert found.missing_keys == (("é",),)
        finally:
            connection.execute("DROP DATABASE latin")


def test_more_columns_than_a_function_takes(connection: Connection) -> None:
    names = [f"c{number}" for number in range(300)]
    columns = ", ".join(f"{name} text" for name in names)
    connection.execute(f"CREATE TABLE wide ({columns}); INSERT INTO wide (c7) VALUES ('x')")
    values = {name: pa.array(["x" if name == "c7" else None], pa.string()) for name in names}
    assert compare(connection, "public.wide", ArrowRows(pa.table(values))).equal


def test_a_row_twice_at_the_target_is_extra(connection: Connection) -> None:
    connection.execute(WORDS)
    twice = pa.concat_tables([words(), words().slice(41, 1)])
    found = compare(connection, "public.Odd.Name", ArrowRows(twice))
    assert found.extra_keys == (("k0", "42"),)
    assert not found.missing_keys
    assert not found.differing_keys


def test_the_number_of_named_keys_is_bounded(connection: Connection) -> None:
    connection.execute(WORDS)
    found = compare(connection, "public.Odd.Name", ArrowRows(words().slice(0, 0)), max_keys=3)
    assert len(found.missing_keys) == 3
    assert found.has_more
    assert str(found).endswith(", and more")


def test_a_table_without_key_is_compared_as_a_bag(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE log (at int4, what text);
        INSERT INTO log VALUES (1, 'a'), (1, 'a'), (2, 'b'), (NULL, NULL)
    """)
    same = pa.table({"at": pa.array([None, 1, 2, 1], pa.int32()), "what": [None, "a", "b", "a"]})
    assert compare(connection, "public.log", ArrowRows(same)).equal
    found = compare(connection, "public.log", ArrowRows(same.slice(0, 3)))
    assert not found.has_key
    assert found.missing_keys == (("1", "a"),)
    assert not found.extra_keys


def test_rows_without_a_key_are_named_by_their_values(connection: Connection) -> None:
    long = "é" * 50
    connection.execute(
        "CREATE TABLE log (at int4, what text, more text);"
        f" INSERT INTO log VALUES (1, 'a', NULL), (1, 'a', NULL), (2, '{long}x', 'b')"
    )
    schema = pa.schema([("at", pa.int32()), ("what", pa.string())])
    target = pa.table([[1, 2, 3], ["a", f"{long}y", "c"]], schema=schema)
    found = compare(connection, "public.log", ArrowRows(target))
    assert str(found) == (
        "public.log: 3 rows at the source, 3 here; missing: (1, a, NULL), "
        f"(2, {long[:40]}…, b); not at the source: (2, {long[:40]}…, NULL), (3, c, NULL)"
    )
    found = compare(connection, "public.log", ArrowRows(target), columns=["at", "what"])
    assert found.differing_keys == (("2", long[:41]),)


def test_a_partitioned_table_is_its_root(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE m (id int4 PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10);
        CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20);
        INSERT INTO m VALUES (1), (11);
        CREATE TABLE parent (id int4 PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
        INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);
    """)
    assert_equal(connection, "public.m", ArrowRows(pa.table({"id": pa.array([11, 1], pa.int32())})))
    assert_equal(
        connection, "public.parent", ArrowRows(pa.table({"id": pa.array([1], pa.int32())}))
    )


def test_a_column_that_the_target_has_not_yet_is_null_there(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int4 PRIMARY KEY, added text); INSERT INTO t VALUES (1)")
    rows = ArrowRows(pa.table({"id": pa.array([1], pa.int32()), "dropped": ["x"]}))
    assert compare(connection, "public.t", rows).equal
    connection.execute("UPDATE t SET added = 'y'")
    assert compare(connection, "public.t", rows).differing_keys == (("1",),)


def test_the_source_is_read_in_the_transaction_of_the_caller(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int4 PRIMARY KEY); INSERT INTO t VALUES (1)")
    rows = ArrowRows(pa.table({"id": pa.array([1], pa.int32())}))
    with (
        connection.transaction(),
        psycopg.connect(connection.info.dsn, autocommit=True) as other,
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT FROM t")  # its snapshot is made by its first query
        other.execute("INSERT INTO t VALUES (2)")
        assert not compare(other, "public.t", rows).equal
        assert compare(connection, "public.t", rows).equal


def test_rows_that_the_reader_may_not_see_are_an_error(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE t (id int4 PRIMARY KEY); INSERT INTO t VALUES (1);
        ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY;
        CREATE ROLE compare_reader; GRANT SELECT ON t TO compare_reader
    """)
    rows = ArrowRows(pa.table({"id": pa.array([], pa.int32())}))
    try:
        connection.execute("SET ROLE compare_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            compare(connection, "public.t", rows)
    finally:
        connection.execute("RESET ROLE; REVOKE ALL ON t FROM compare_reader")
        connection.execute("DROP ROLE compare_reader")


def test_a_missing_table_or_column_is_said(connection: Connection, tmp_path: Path) -> None:
    connection.execute("CREATE TABLE t (id int4 PRIMARY KEY)")
    rows = ArrowRows(pa.table({"id": pa.array([], pa.int32())}))
    with pytest.raises(PgsluiceError, match=r"no table public\.none"):
        compare(connection, "public.none", rows)
    with pytest.raises(PgsluiceError, match="no Delta table in"):
        compare(connection, "public.t", tmp_path / "none")
    with pytest.raises(PgsluiceError, match="no replicated column x"):
        compare(connection, "public.t", rows, key=["x"])


def test_the_key_is_the_index_in_its_own_order(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE t (a int4 NOT NULL, b int4 NOT NULL, c int4);
        CREATE UNIQUE INDEX t_key ON t (b, a) INCLUDE (c);
        ALTER TABLE t REPLICA IDENTITY USING INDEX t_key
    """)
    assert ComparedTable.find(connection, "public.t").key == ("b", "a")


ROWS = st.dictionaries(
    st.integers(0, 8), st.sampled_from([None, "", "-", "1:a", "a", "null"]), max_size=9
)


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(source=ROWS, target=ROWS)
def test_what_is_named_is_what_differs(
    connection: Connection, source: dict[int, str | None], target: dict[int, str | None]
) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS p (id int4 PRIMARY KEY, v text); TRUNCATE p")
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO p VALUES (%s, %s)", list(source.items()))
    rows = ArrowRows(pa.table({
        "id": pa.array(target.keys(), pa.int32()), "v": pa.array(target.values(), pa.string()),
    }))  # fmt: skip
    found = compare(connection, "public.p", rows)
    assert found.equal == (source == target)
    assert {int(key or "") for (key,) in found.missing_keys} == source.keys() - target.keys()
    assert {int(key or "") for (key,) in found.extra_keys} == target.keys() - source.keys()
    both = source.keys() & target.keys()
    assert {int(key or "") for (key,) in found.differing_keys} == {
        key for key in both if source[key] != target[key]
    }
    missing, extra = compare_exact(connection, "public.p", rows)
    assert (not missing and not extra) == (source == target)


def test_the_oldest_server_agrees(pg10: EmbeddedServer, database: Callable[..., Any]) -> None:
    with database(pg10).connect() as connection:
        connection.execute("""
            CREATE TABLE t (id int4 PRIMARY KEY, f float8, r float4, n numeric, a float8[]);
            INSERT INTO t VALUES (1, 0.1, 0.1, 1.10, '{0.1,1e300}'), (2, 'NaN', '-0', NULL, '{}')
        """)
        rows = ArrowRows(pa.table({
            "id": pa.array([2, 1], pa.int32()), "f": [float("nan"), 0.1],
            "r": pa.array([-0.0, 0.1], pa.float32()), "n": [None, "1.10"], "a": [[], [0.1, 1e300]],
        }))  # fmt: skip
        found = compare(connection, "public.t", rows)
        assert found.equal, str(found)


def test_nothing_here_is_the_decoders() -> None:
    """The second opinion is one only while it imports nothing of the first."""
    folder = Path(pgsluice.verification.__file__).parent
    for module in folder.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [name]
            ours = {one for one in names if one.split(".")[0] == "pgsluice"}
            allowed = ("pgsluice.verification", "pgsluice.errors")
            assert all(one.startswith(allowed) for one in ours), module.name


def test_a_column_that_a_leaf_does_not_send_counts_as_null(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE parted (id int4 PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20);
        INSERT INTO parted VALUES (1, 'sent'), (11, 'not sent')
    """)
    oid = connection.execute("SELECT 'high'::regclass::oid::bigint").fetchall()[0][0]
    rows = ArrowRows(pa.table({"id": pa.array([1, 11], pa.int32()), "v": ["sent", None]}))
    parted = ComparedTable.find(connection, "public.parted")
    assert compare(connection, replace(parted, unlisted={"v": (oid,)}), rows).equal
    assert not compare(connection, "public.parted", rows).equal


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_sessions_share_the_pages_of_a_table(
    database: Callable[[], Any], *, is_partitioned: bool
) -> None:
    """Rows of the last page are read, too, though others came after the snapshot."""
    rows = 40_000
    with ExitStack() as stack:
        one = database()
        first, *helpers = (stack.enter_context(one.connect()) for _ in range(3))
        first.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)"
            + " PARTITION BY RANGE (id)" * is_partitioned
        )
        if is_partitioned:
            first.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (30000)")
            first.execute("CREATE TABLE high PARTITION OF t DEFAULT")
        first.execute(f"INSERT INTO t SELECT i, repeat('v', 200) FROM generate_series(1, {rows}) i")
        for session in (first, *helpers):
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((snapshot,),) = first.execute("SELECT pg_export_snapshot()").fetchall()
        for session in helpers:
            session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        one.execute(f"INSERT INTO t SELECT i, 'later' FROM generate_series({rows + 1}, 50000) i")
        ranges = page_ranges(first, sql.Identifier("public", "t"), 3)
        can_divide = first.info.server_version >= 140000
        assert (len(ranges.conditions) > 1) is can_divide
        if can_divide:
            alone = page_ranges(first, sql.Identifier("public", "t"), 1, Extent(rate=2**20))
            assert len(alone.conditions) > 1
            assert 1 < alone.range_s < 6, "2 MiB, or a little more, of each partition"
        else:
            with pytest.raises(PgsluiceError, match="needs PostgreSQL 14 or newer"):
                page_ranges(first, sql.Identifier("public", "t"), 1, Extent(rate=2**20))
        ids = pa.array(range(1, rows + 1), pa.int32())
        target = pa.table({"id": ids, "v": pa.repeat("v" * 200, rows)})
        assert compare(first, "public.t", ArrowRows(target), helpers=helpers).equal
        found = compare(first, "public.t", ArrowRows(target.slice(1)), helpers=helpers)
        assert found.missing_keys == (("1",),)
        assert (found.source.rows, found.target.rows) == (rows, rows - 1)
        half = Extent(sample=0.5)
        some = compare(first, "public.t", ArrowRows(target), helpers=helpers, extent=half)
        assert some.equal
        assert 0 < some.source.rows < rows
        other = target.set_column(1, "v", pa.repeat("w", rows))
        some = compare(first, "public.t", ArrowRows(other), extent=half, max_keys=rows)
        assert len(some.differing_keys) == some.source.rows == some.target.rows < rows
        stopped = Extent(rate=2**20, is_stopping=lambda: True)
        if can_divide:
            with pytest.raises(PgsluiceError, match="asked to stop"):
                compare(first, "public.t", ArrowRows(target), extent=stopped)
