"""Divides a table's pages into ranges, which several sessions of one snapshot read at the same
time.

Each range is a condition on ``ctid``, with which PostgreSQL 14 and newer read only the pages of the
range. For a partitioned table, a range has the same pages of each partition. The last range has no
end, so that together they have every page.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice, pairwise
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, cast

import psycopg
from psycopg import sql

_FIRST_WITH_RANGES = 140000
_LEAST_PAGES = 256
"""The minimum number of pages in a range: 2 MB of default-sized pages."""
_RANGES_A_SESSION = 4
"""The number of ranges for each session, so that no session waits long for another at the end."""
_ROWS_AT_ONCE = 8192

Connection = psycopg.Connection[Any]

_PAGES = """
WITH RECURSIVE below(oid) AS (
    SELECT %s::regclass::oid
    UNION ALL
    SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT max(pg_catalog.pg_relation_size(oid) / pg_catalog.current_setting('block_size')::bigint)
FROM below WHERE pg_catalog.has_column_privilege(%s::regclass, 'ctid', 'SELECT')
"""
"""Whether the role may read ctid; privileges on single columns rarely include it."""


def page_ranges(connection: Connection, table: sql.Identifier, sessions: int) -> list[sql.Composed]:
    """Conditions that divide a table among sessions; a single condition that is always true if the
    table is small, the server cannot read ranges, or the role may not read ctid.

    Args:
        connection: a connection to the source.
        table: its qualified name.
        sessions: the number of sessions.
    """
    whole = sql.SQL("true").format()
    if sessions == 1 or connection.info.server_version < _FIRST_WITH_RANGES:
        return [whole]
    name = table.as_string(connection)
    ((pages,),) = connection.execute(_PAGES, [name, name]).fetchall()
    count = min(sessions * _RANGES_A_SESSION, int(pages or 0) // _LEAST_PAGES)
    if count < 2:
        return [whole]
    starts = [int(pages) * number // count for number in range(count)]
    ranges = [
        sql.SQL("ctid >= {} AND ctid < {}").format(_first_row(start), _first_row(end))
        for start, end in pairwise(starts)
    ]
    return [*ranges, sql.SQL("ctid >= {}").format(_first_row(starts[-1]))]


def _first_row(page: int) -> sql.Composed:
    return sql.SQL("{}::tid").format(sql.Literal(f"({page},0)"))


def read_ranges(
    connections: Sequence[Connection],
    ranges: Sequence[sql.Composed],
    query: Callable[[sql.Composed], sql.Composed],
    take: Callable[[Sequence[tuple[Any, ...]]], object],
) -> None:
    """Read the rows of a query over all ranges, in any order, some thousand at a time.

    Args:
        connections: of one snapshot; each reads one range after another.
        ranges: of :func:`page_ranges`.
        query: makes the query of a range.
        take: is called with rows, by one thread at a time.

    Raises:
        psycopg.Error: of the first query that failed; the others end with their range.
    """
    waiting, taking = SimpleQueue[sql.Composed](), Lock()
    for condition in ranges:
        waiting.put(condition)

    def read(connection: Connection) -> None:
        with suppress(Empty):
            while True:
                try:
                    rows = connection.cursor().stream(query(waiting.get_nowait()))
                    with closing(cast("Generator[tuple[Any, ...]]", rows)):  # as it is documented
                        while some := [*islice(rows, _ROWS_AT_ONCE)]:
                            with taking:
                                take(some)
                except BaseException:
                    _empty(waiting)
                    raise

    with ThreadPoolExecutor(len(connections)) as threads:
        for _ in threads.map(read, connections):
            pass


def _empty(waiting: SimpleQueue[sql.Composed]) -> None:
    with suppress(Empty):
        while True:
            waiting.get_nowait()
