"""Changes that a real server sends decode to the rows that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.databases import Database
from tests.support.segments import segment

from pgsluice.columnar import RelationChanges, decode_segment

MakeDatabase = Callable[..., Database]

TABLE = """
    CREATE TABLE goods (
        id int PRIMARY KEY, price numeric(10,2), name text, is_new bool, made date,
        seen timestamptz, code uuid, tags text[], body text, more jsonb,
        ratio float8, raw bytea, small int2, far bigint, at timestamp
    );
    ALTER TABLE goods ALTER body SET STORAGE EXTERNAL"""
FILL = """
    INSERT INTO goods SELECT i, i / 7.0, 'name ' || i, i % 2 = 0, date '2024-01-01' + i,
        timestamptz '2024-01-01 00:00:00.5+01' + i * interval '1 hour', md5(i::text)::uuid,
        ARRAY['a b', NULL, i::text], repeat(md5(i::text), 100),
        jsonb_build_object('n', i, 's', 'x"y'), i / 3.0, decode(md5(i::text), 'hex'), i,
        i * 10000000000, timestamp '1999-12-31 23:59:59.999999' - i * interval '1 day'
    FROM generate_series(1, 500) AS i"""


def changes_of(database: Database, *, binary: bool) -> list[RelationChanges]:
    """All changes that the slot has, decoded."""
    rows = database.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,"
        f" 'proto_version', '1', 'publication_names', 'p', 'binary', '{binary}') ORDER BY lsn"
    )
    return list(decode_segment(segment([bytes(data) for (data,) in rows])))


def rows_of(changes: RelationChanges) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in changes.new.columns), strict=True))


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.pg(">= 14")
def test_inserts_updates_and_unchanged_toast(database: MakeDatabase, binary: bool) -> None:
    shop = database()
    shop.execute(
        TABLE,
        "CREATE PUBLICATION p FOR TABLE goods",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        FILL,
        "UPDATE goods SET name = NULL, price = 'NaN' WHERE id % 2 = 0",
        "UPDATE goods SET id = id + 1000 WHERE id <= 10",
        "DELETE FROM goods WHERE id BETWEEN 20 AND 29",
        "TRUNCATE goods",
    )
    (changes,) = changes_of(shop, binary=binary)

    assert bytes(changes.actions) == b"I" * 500 + b"U" * 260 + b"D" * 10 + b"T"
    assert sorted(changes.old.columns[0].to_pylist()) == [*range(1, 11), *range(20, 30)]
    assert set(changes.old.absent) == set(range(1, 15))
    body = [column.name for column in changes.relation.columns].index("body")
    assert changes.new.absent.keys() == {body}
    assert changes.new.absent[body].tolist() == [False] * 500 + [True] * 260
    assert changes.new.unfit.keys() == {1}
    assert int(changes.new.unfit[1].sum()) == 250 + 5
    assert [len(row) for row in rows_of(changes)[:1]] == [15]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.pg(">= 14")
def test_decoded_values_equal_those_of_psycopg(database: MakeDatabase, binary: bool) -> None:
    shop = database()
    shop.execute(
        TABLE,
        "CREATE PUBLICATION p FOR TABLE goods",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        FILL,
    )
    (changes,) = changes_of(shop, binary=binary)

    names = ", ".join(
        f"{column.name}::text" if column.name in ("code", "more") else column.name
        for column in changes.relation.columns
    )
    read_by_psycopg = shop.execute(f"SELECT {names} FROM goods ORDER BY id")
    assert len(read_by_psycopg) == 500
    assert rows_of(changes) == read_by_psycopg
