"""A session that reads one table after another."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from tests.support.databases import Database, MakeDatabase

from pgsluice.snapshots.read_session import ReadSession

_SESSIONS = """
SELECT a.pid, a.application_name,
       (SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = a.pid AND c.relname IN ('a', 'b'))
FROM pg_stat_activity a
WHERE datname = current_database() AND pid <> pg_backend_pid()
AND application_name IN ('pgsluice copy public.a', 'pgsluice copy public.b', 'ours')
"""


def sessions(shop: Database) -> list[tuple[int, str, int]]:
    """Process, name and the locked tables of the sessions that copy."""
    return [(pid, name, locks) for pid, name, locks in shop.execute(_SESSIONS)]


def test_one_session_reads_tables_in_transactions_of_their_own(database: MakeDatabase) -> None:
    shop = database()
    shop.execute("CREATE TABLE a (id int)", "CREATE TABLE b (id int)")
    with closing(ReadSession(shop.dsn)) as session:
        assert sessions(shop) == []
        pids = set()
        for table in ("a", "b", "a"):
            with session.reading(f"public.{table}") as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                connection.execute(f"LOCK TABLE public.{table} IN ACCESS SHARE MODE".encode())
                ((pid, name, locks),) = sessions(shop)
                assert (name, locks) == (f"pgsluice copy public.{table}", 1)
                pids.add(pid)
            assert [locks for _, _, locks in sessions(shop)] == [0]
        assert len(pids) == 1


def test_a_name_of_the_dsn_stays(database: MakeDatabase) -> None:
    shop = database()
    with closing(ReadSession(f"{shop.dsn} application_name=ours")) as session:
        for table in ("a", "b"):
            with session.reading(f"public.{table}"):
                assert [name for _, name, _ in sessions(shop)] == ["ours"]


def test_an_error_of_one_table_is_not_the_next_ones(database: MakeDatabase) -> None:
    shop = database()
    with closing(ReadSession(shop.dsn)) as session:
        with pytest.raises(psycopg.errors.UndefinedTable), session.reading("public.a") as first:
            first.execute("BEGIN; SELECT FROM public.a")
        assert first.closed
        with session.reading("public.b") as second:
            assert second.execute("SELECT 1").fetchone() == (1,)
    assert second.closed


def test_a_session_that_the_server_ended_is_an_error_of_the_connection(
    database: MakeDatabase,
) -> None:
    shop = database()
    with closing(ReadSession(shop.dsn)) as session:
        with session.reading("public.a") as connection:
            pid = connection.info.backend_pid
        shop.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
        with pytest.raises(psycopg.OperationalError), session.reading("public.b"):
            pytest.fail("is not reached")
        with session.reading("public.b") as connection:
            assert connection.info.backend_pid != pid


def test_a_session_that_the_server_ends_behind_the_last_row_has_read_its_table(
    database: MakeDatabase,
) -> None:
    shop = database()
    with closing(ReadSession(shop.dsn)) as session:
        with session.reading("public.a") as first:
            first.execute("BEGIN")
            shop.execute(f"SELECT pg_terminate_backend({first.info.backend_pid}, 10000)")
        assert first.closed
        with session.reading("public.b") as second:
            assert second.execute("SELECT 1").fetchone() == (1,)
