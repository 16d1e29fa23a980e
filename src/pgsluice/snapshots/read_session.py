"""A session of a copy's task, which reads one table after another.

A session costs the server some 20 ms of CPU before its first row: a process, and what it caches of
the catalog. A task may read hundreds of small tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.replication import connect_sql

_KEEP_MEMORY = b"""
SELECT pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat('x', 4096), 512))
"""
"""Lets the server's C library free 2 MiB at once. From then on, glibc keeps twice as much freed
memory. Otherwise it may return the memory of each row to the system and request it again: the
server then used 22 instead of 6.5 us of CPU for a row of 200 columns, in every other session."""
_SHOWN_AS = "pgsluice copy "


class ReadSession:
    """The session; it is opened for the first table. Not thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._idle: psycopg.Connection[tuple[Any, ...]] | None = None

    def close(self) -> None:
        """End the session."""
        if self._idle is not None:
            self._idle.close()

    @contextmanager
    def reading(self, table: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection without a transaction, to read one table with; the block may begin one.

        Its transaction and its locks end with the block. After an error, the next table gets
        another session; so it does if the session broke behind the block, which has read its rows
        then.

        Args:
            table: the server shows it in the session's application_name, unless the dsn or
                PGAPPNAME has one.

        Raises:
            SourceUnreachable, SourceRefused: see :func:`pgsluice.replication.connect_sql`.
        """
        connection, self._idle = self._idle, None
        is_new = connection is None
        if connection is None:
            connection = connect_sql(self._dsn, application=f"copy {table}")
        try:
            if is_new:
                connection.execute(_KEEP_MEMORY)
            elif (connection.info.parameter_status("application_name") or "").startswith(_SHOWN_AS):
                name = sql.Literal(f"{_SHOWN_AS}{table}")
                connection.execute(sql.SQL("SET application_name = {}").format(name))
            yield connection
        except BaseException:
            connection.close()
            raise
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:  # an error now would follow the results of a table that is read
            connection.close()
        else:
            self._idle = connection
