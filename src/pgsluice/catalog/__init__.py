"""Reads the source's catalog: version, slots, relations, types, publications.

Queries run on PostgreSQL 10 to 18 over a connection of :func:`pgsluice.replication.connect_sql`
(the ``replication`` room is not imported here): names are qualified. Only
:mod:`.publications.managed` writes. The server's errors are raised as psycopg's unless a function
says otherwise; ``replication.source_errors`` maps them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = psycopg.Connection[Any]


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """A context in which all queries of a connection in autocommit mode see the same catalog."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
