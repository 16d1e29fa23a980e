"""Starting again: nothing lost, nothing doubled, whatever was deleted or changed between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from psycopg.conninfo import make_conninfo
from tests.support.databases import Database, MakeDatabase
from tests.support.pipeline import MakePipeline

from pgsluice.errors import TablesUnfinished
from pgsluice.spool import RecordStore, TableState

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def shop(database: MakeDatabase) -> Iterator[Database]:
    """Its sessions connect as a role that may only replicate, and read what it is granted."""
    owned = database()
    role = f"reader_{owned.name}"
    owned.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    yield owned
    owned.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_once_ends_where_only_unpublished_tables_were_written_and_finds_no_gap(
    shop: Database, pipeline: MakePipeline
) -> None:
    """And a table that its role may not read is copied when it may, without being asked for."""
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE u (a int)",
        "CREATE TABLE mine (id int PRIMARY KEY)",
        "CREATE TABLE secret (id int PRIMARY KEY)",
        "INSERT INTO secret VALUES (1)",
        f'CREATE PUBLICATION "{shop.name}" FOR TABLE t, secret',
        f"GRANT SELECT ON t TO reader_{shop.name}",
    )
    one = pipeline(shop)
    one.path.write_text(
        one.path.read_text().replace(
            json.dumps(shop.dsn), json.dumps(make_conninfo(shop.dsn, user=f"reader_{shop.name}"))
        )
    )
    for _ in range(3):
        with pytest.raises(TablesUnfinished, match=r"reader_\w+ may not read public\.secret"):
            one.once()
        shop.execute("INSERT INTO mine SELECT count(*) FROM mine", "INSERT INTO u VALUES (1)")
        shop.execute("SELECT pg_switch_wal()", "CHECKPOINT")
    shop.execute("INSERT INTO t VALUES (1)", f"GRANT SELECT ON secret TO reader_{shop.name}")
    one.once()
    one.assert_equal("t", "secret")


def test_other_limits_of_batches_and_a_copy_that_was_cut_off(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE busy (id int PRIMARY KEY, n int)",
        "CREATE TABLE quiet (id int PRIMARY KEY, n int)",
        "CREATE TABLE cut_off (id int PRIMARY KEY)",
        "INSERT INTO busy SELECT i, 0 FROM generate_series(1, 100) i",
        "INSERT INTO quiet VALUES (1, 1)",
        "INSERT INTO cut_off VALUES (1)",
    )
    one.once()
    with monkeypatch.context() as patch:
        patch.setattr("pgsluice.subscription.running.session.build_session", None)
        one.once()  # nothing is to do: Spark is not asked for
    shop.execute("UPDATE busy SET n = n + 1")
    one.once()
    for limit in ("max_rows_per_batch = 10", "max_bytes_per_batch = 1"):
        shop.execute("UPDATE busy SET n = n + 1", "UPDATE busy SET n = n + 1 WHERE id < 50")
        shop.execute("INSERT INTO busy SELECT max(id) + 1, 0 FROM busy")
        one.write(limit)
        one.once()
        one.assert_equal("busy", "quiet")

    # The record says that a copy is under way, and whose process is gone.
    store = RecordStore.open(one.spool, "lake")
    (oid,) = (oid for oid, table in store.record.tables.items() if table.name == "cut_off")
    table = replace(store.record.tables[oid], state=TableState.DATA_COPY)
    store.save(replace(store.record, tables={**store.record.tables, oid: table}))
    shop.execute("UPDATE quiet SET n = 2", "INSERT INTO cut_off VALUES (2)")
    one.once()
    one.assert_equal("busy", "quiet", "cut_off")
    assert one.table("cut_off").copy_number == 2
