"""Streams and capture change the same publications at the same time.

A lock of the test holds a process between its queries: each has read what another one changes.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.catalog.publications.managed import ensure_publications, publish_for_stream
from pgsluice.errors import SourceRefused
from pgsluice.replication import connect_sql

_PUBLISHED = """
SELECT r.prrelid::regclass::text FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname LIKE 's\\_stream%'
"""
_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "b", "c")))
    return shop


def _stream(shop: Database, table: str) -> None:
    with connect_sql(shop.dsn) as connection:
        publish_for_stream(connection, "s_stream", ("public", table))


def _look(shop: Database) -> None:
    """What capture does at intervals."""
    with connect_sql(shop.dsn) as connection:
        ensure_publications(connection, ["s_stream"])


def _published(shop: Database) -> set[str]:
    return {name for (name,) in shop.execute(_PUBLISHED)}


def _both_wait_for(shop: Database, statement: str, *tables: str) -> None:
    """Begin streams of these tables, which all wait before the lock of the statement goes."""
    with ExitStack() as others, shop.connect() as holder:
        holder.execute(f"BEGIN; {statement}")
        for number, table in enumerate(tables, 1):
            others.enter_context(beside(lambda _, table=table: _stream(shop, table)))
            await_that(lambda number=number: shop.execute(_WAITING) == [(number,)])
        holder.execute("ROLLBACK")


def test_two_streams_at_once_have_both_their_tables_published(shop: Database) -> None:
    _stream(shop, "a")
    locks = "COMMENT ON PUBLICATION s_stream IS 'holds the lock of this statement'"
    _both_wait_for(shop, locks, "b", "c")
    _look(shop)
    assert _published(shop) == {"a", "b", "c"}


def test_the_first_two_streams_at_once_have_both_their_tables_published(shop: Database) -> None:
    locks = "LOCK TABLE pg_catalog.pg_publication IN SHARE MODE"
    _both_wait_for(shop, locks, "b", "c")
    _look(shop)
    assert _published(shop) == {"b", "c"}


def test_a_look_that_has_begun_leaves_the_table_that_a_stream_publishes(shop: Database) -> None:
    """The look has read which tables streams ask for, and not yet which ones are published."""
    _stream(shop, "a")
    with ExitStack() as looking, connect_sql(shop.dsn) as holder, holder.transaction():
        holder.execute("LOCK TABLE pg_catalog.pg_publication_rel IN ACCESS EXCLUSIVE MODE")
        looking.enter_context(beside(lambda _: _look(shop)))
        await_that(lambda: shop.execute(_WAITING) == [(1,)])
        publish_for_stream(holder, "s_stream", ("public", "b"))
    assert _published(shop) == {"a", "b"}


def test_a_table_that_cannot_be_published_now_ends_the_start_of_its_stream(shop: Database) -> None:
    """Its stream would get no changes, and nobody would notice."""
    _stream(shop, "a")
    shop.execute(
        "DROP ROLE IF EXISTS streamer",
        "CREATE ROLE streamer LOGIN",
        "ALTER PUBLICATION s_stream OWNER TO streamer",
        "ALTER PUBLICATION s_stream_insert OWNER TO streamer",
        f"GRANT CREATE ON DATABASE {shop.name} TO streamer",
    )
    with connect_sql(shop.server.dsn(shop.name, user="streamer")) as connection:
        with pytest.raises(SourceRefused, match="b is not published yet") as caught:
            publish_for_stream(connection, "s_stream", ("public", "b"))
        _, *statements = str(caught.value.hint).splitlines()
        shop.execute("ALTER PUBLICATION s_stream OWNER TO postgres", *statements)
        publish_for_stream(connection, "s_stream", ("public", "b"))
    assert _published(shop) == {"a", "b"}
    shop.execute("DROP OWNED BY streamer", "DROP ROLE streamer")


def test_a_stream_of_all_tables_does_not_begin_while_one_of_them_is_locked(shop: Database) -> None:
    """Captures would go on to publish the tables of other streams only."""
    _stream(shop, "a")
    with shop.connect() as other, connect_sql(shop.dsn) as connection:
        other.execute("BEGIN; LOCK TABLE b IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM does
        with pytest.raises(SourceRefused, match="not every table is published yet"):
            publish_for_stream(connection, "s_stream", None)
        other.execute("COMMIT")
        assert publish_for_stream(connection, "s_stream", None) == ()
    _look(shop)
    assert _published(shop) >= {"a", "b", "c"}
