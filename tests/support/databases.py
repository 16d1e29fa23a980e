"""A database of a test's own on a real server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from tests.support.waiting import await_that

from pgsluice.embedded import EmbeddedServer


@dataclass(frozen=True)
class Database:
    """One database on a server."""

    server: EmbeddedServer
    name: str

    @property
    def dsn(self) -> str:
        """Connects as the superuser, over TCP."""
        return self.server.dsn(self.name)

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection in autocommit mode; the caller closes it."""
        return psycopg.connect(self.dsn, autocommit=True)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in autocommit mode on a connection of their own.

        Returns:
            the rows of the last statement; empty when it has none.
        """
        rows: list[tuple[Any, ...]] = []
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def await_no_temporary_slot(self) -> None:
        """Until none is left: the server drops one when it sees that its session has ended."""
        query = (
            "SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()"
        )
        await_that(lambda: not self.execute(query), "no temporary slot is left")


Servers = Callable[[int], EmbeddedServer]
MakeDatabase = Callable[..., Database]


@contextmanager
def fresh_database(server: EmbeddedServer) -> Iterator[Database]:
    """An empty database on a server; it is dropped at the end of the block."""
    database = Database(server, f"test_{uuid.uuid4().hex[:12]}")
    # From 15 on the template is written to the WAL by default, which takes ten times the CPU.
    strategy = " STRATEGY file_copy" if server.programs.major >= 15 else ""
    create = sql.SQL("CREATE DATABASE {}" + strategy).format(sql.Identifier(database.name))
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(create)
    try:
        yield database
    finally:
        _drop(database)


def _drop(database: Database) -> None:
    """Drop a database with its slots, connections and prepared transactions."""
    server = database.server
    if not server.is_running:  # a test that crashes a shared server puts it back first
        server.start()
    name = sql.Identifier(database.name)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        prepared = connection.execute(
            "SELECT format('ROLLBACK PREPARED %%L', gid) FROM pg_prepared_xacts"
            " WHERE database = %s",
            [database.name],
        ).fetchall()
        if prepared:  # only sessions of the database itself may end them
            database.execute(*(statement for (statement,) in prepared))
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        while connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [database.name],
        ).fetchall():
            pass  # each round asks again; the server's answer is the condition
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s",
            [database.name],
        )
        connection.execute(sql.SQL("DROP DATABASE {}").format(name))
