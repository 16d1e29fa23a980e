"""Both sides choose the same rows of the ranges of keys that differ, and few others."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pyarrow as pa
import pytest
from tests.support.arrow_rows import ArrowRows
from tests.support.databases import Database, MakeDatabase

from pgsluice.replication import connect_sql
from pgsluice.verification import KeyRanges, compare

MODULE = import_module("pgsluice.verification.compare")
ROWS = 20_000
KEY = ("a", 'b"%{', "c", "d", "e", "f", "g")
TABLE = """
CREATE TABLE t (a int, "b""%{" text, c numeric(9, 2), d timestamptz, e uuid, f bytea, g float8,
                note text, PRIMARY KEY (a, "b""%{", c, d, e, f, g))
"""
INSERT = f"""
INSERT INTO t SELECT i, 'it''s ' || i, i / 7.0, timestamptz '2020-01-01 UTC' + i * interval '1 h',
    md5(i::text)::uuid, decode(md5(i::text), 'hex'), i / 3.0, 'note'
FROM generate_series(1, {ROWS}) i
"""
TYPES = {
    "a": pa.int32(),
    'b"%{': pa.string(),
    "c": pa.decimal128(9, 2),
    "d": pa.timestamp("us", "UTC"),
    "e": pa.string(),
    "f": pa.binary(),
    "g": pa.float64(),
    "note": pa.string(),
}


@pytest.fixture
def source(database: MakeDatabase) -> Database:
    source = database()
    source.execute(TABLE, INSERT)
    return source


def target_of(source: Database) -> pa.Table:
    rows = source.execute('SELECT a, "b""%{", c, d, e::text, f, g, note FROM t ORDER BY a')
    columns = zip(*rows, strict=True)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, TYPES.values(), strict=True)]
    return pa.table(arrays, names=list(TYPES))


def ranges_of(
    source: Database, target: pa.Table, most: float = 0.25, *, has_small: bool = False
) -> KeyRanges | None:
    with connect_sql(source.dsn) as session, connect_sql(source.dsn) as helper:
        exported = session.execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot()"
        )
        exported.nextset()
        ((snapshot,),) = exported.fetchall()
        helper.execute(
            f"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'"
        )
        rows = ArrowRows(target)
        return compare(
            session,
            "public.t",
            rows,
            max_keys=0,
            most_in_ranges=most,
            has_small_ranges=has_small,
            helpers=[helper],
        ).ranges


def at_source(source: Database, ranges: KeyRanges) -> set[int]:
    """The numbers of the rows that the condition is true for, in a session of a copy."""
    with connect_sql(source.dsn) as session:
        rows = session.execute(f"SELECT a FROM public.t WHERE {ranges.condition}".encode())
        return {number for (number,) in rows}


def at_target(target: pa.Table, ranges: KeyRanges) -> set[int]:
    columns = {name: target.column(name).combine_chunks() for name in ranges.columns}
    return set(np.asarray(target.column("a"))[ranges.passing(columns, len(target))].tolist())


def test_one_row_is_in_one_range(source: Database) -> None:
    target = target_of(source)
    source.execute("UPDATE t SET note = 'another' WHERE a = 17")
    ranges = ranges_of(source, target)
    assert ranges is not None
    assert ranges.columns == KEY
    assert np.count_nonzero(ranges.chosen) == 1
    assert str(ranges) == "1 of 8192 ranges of keys"
    chosen = at_source(source, ranges)
    assert chosen == at_target(target, ranges)
    assert 17 in chosen
    assert len(chosen) == ranges.rows < 20


@pytest.mark.parametrize(("has_small", "count"), [(True, 8192), (False, 64)])
def test_ranges_of_many_rows_are_divided_if_asked(
    source: Database, monkeypatch: pytest.MonkeyPatch, has_small: bool, count: int
) -> None:
    monkeypatch.setattr(MODULE, "BUCKETS", 64)
    monkeypatch.setattr(MODULE, "SMALL_BUCKETS", 8192)
    target = target_of(source)
    source.execute("UPDATE t SET note = 'another' WHERE a = 17")
    ranges = ranges_of(source, target, has_small=has_small)
    assert str(ranges) == f"1 of {count} ranges of keys"
    assert ranges is not None
    chosen = at_source(source, ranges)
    assert chosen == at_target(target, ranges)
    assert 17 in chosen


def test_missing_and_extra_rows_have_ranges(source: Database) -> None:
    target = target_of(source)
    source.execute("UPDATE t SET a = -a WHERE a IN (5, 6)")
    ranges = ranges_of(source, target)
    assert ranges is not None
    assert {5, 6} <= at_target(target, ranges)
    assert {-5, -6} <= at_source(source, ranges)
    assert at_source(source, ranges) - {-5, -6} == at_target(target, ranges) - {5, 6}


def test_many_changes_in_all_ranges_are_found_by_smaller_ones(
    source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the rows changed, and ranges that have them have more than a quarter."""
    monkeypatch.setattr("pgsluice.verification.page_ranges.LEAST_PAGES", 1)
    target = target_of(source)
    source.execute("UPDATE t SET note = 'another' WHERE a % 10 = 0")
    ranges = ranges_of(source, target)
    assert ranges is not None
    chosen = at_source(source, ranges)
    assert chosen == at_target(target, ranges)
    changed = set(range(10, ROWS + 1, 10))
    assert changed <= chosen
    assert len(chosen - changed) < ROWS // 100


def test_too_many_are_no_ranges(source: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ROWS_OF_RANGES", 100)
    target = target_of(source)
    source.execute("UPDATE t SET note = 'another' WHERE a % 3 = 0")
    assert ranges_of(source, target) is None
    source.execute("DELETE FROM t WHERE a % 2 = 0")
    assert ranges_of(source, target) is None
    assert ranges_of(source, target, most=1.0) is not None


def test_a_table_without_key_has_none(source: Database) -> None:
    source.execute("ALTER TABLE t DROP CONSTRAINT t_pkey", "DELETE FROM t WHERE a > 500")
    target = target_of(source)
    source.execute("UPDATE t SET note = 'another' WHERE a = 17")
    assert ranges_of(source, target, most=1.0) is None
