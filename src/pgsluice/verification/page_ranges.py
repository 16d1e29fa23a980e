"""How much of a table is read and how fast; and its pages in ranges, which several sessions of one
snapshot read at the same time.

Each range is a condition on ``ctid``, with which PostgreSQL 14 and newer read only the pages of the
range. For a partitioned table, a range has the same pages of each partition. The last range has no
end, so that together they have every page.

With a rate, ranges are small, and a pause follows each one that was read faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from threading import Event, Lock
from typing import Any, cast

import numpy as np
import psycopg
from psycopg import sql

from pgsluice.errors import PgsluiceError
from pgsluice.verification.digest import Mask

_FIRST_WITH_RANGES = 140000
LEAST_PAGES = 256
"""The minimum number of pages in a range: 2 MB of default-sized pages."""
_RANGES_A_SESSION = 4
"""The number of ranges for each session, so that no session waits long for another at the end."""
_ROWS_AT_ONCE = 8192
_RANGE_S = 2
"""With a rate: about how long reading a range takes, in seconds."""

_POLL_S = 0.2

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Extent:
    """What a comparison reads.

    Attributes:
        sample: the part of the ranges of keys, above 0.0; which ones, is random.
        rate: how much of the source is read, in bytes per second; None: no limit.
        is_stopping: polled between two reads and in pauses; true: give up.
    """

    sample: float = 1.0
    rate: int | None = None
    is_stopping: Callable[[], bool] = bool

    def chosen(self, count: int) -> Mask | None:
        """Which of ``count`` ranges are compared; None: all."""
        if self.sample >= 1:
            return None
        mask: Mask = np.zeros(count, np.bool_)
        most = max(1, round(count * self.sample))
        mask[np.random.default_rng().choice(count, most, replace=False)] = True
        return mask

    def pause_until(self, end: float) -> None:
        """Wait until a time of the monotonic clock.

        Raises:
            PgsluiceError: the comparison was asked to stop.
        """
        while True:
            if self.is_stopping():
                raise PgsluiceError("asked to stop")
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _POLL_S))


EVERYTHING = Extent()
"""All rows, without a limit."""


_PAGES = """
WITH RECURSIVE below(oid) AS (
    SELECT %s::regclass::oid
    UNION ALL
    SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT max(pg_catalog.pg_relation_size(oid) / pg_catalog.current_setting('block_size')::bigint),
       sum(pg_catalog.pg_relation_size(oid))
FROM below WHERE pg_catalog.has_column_privilege(%s::regclass, 'ctid', 'SELECT')
"""
"""Whether the role may read ctid; privileges on single columns rarely include it."""


@dataclass(frozen=True, slots=True)
class PageRanges:
    """The ranges of a table.

    Attributes:
        conditions: one for each range; a single one that is always true: the whole table.
        extent: says when to stop.
        range_s: how long reading a range has to take at least, in seconds; 0.0: no time.
    """

    conditions: tuple[sql.Composed, ...]
    extent: Extent
    range_s: float = 0.0


def page_ranges(
    connection: Connection, table: sql.Identifier, sessions: int, extent: Extent = EVERYTHING
) -> PageRanges:
    """Divide a table among sessions; one range if the table is small, the server cannot read
    ranges, or the role may not read ctid.

    Args:
        extent: has the rate of all sessions together.

    Raises:
        PgsluiceError: the table is not small, and cannot be read at a rate.
    """
    rate, whole = extent.rate, PageRanges((sql.SQL("true").format(),), extent)
    can_read_ranges = connection.info.server_version >= _FIRST_WITH_RANGES
    if rate is None and (sessions == 1 or not can_read_ranges):
        return whole
    name = table.as_string(connection)
    ((pages, size),) = connection.execute(_PAGES, [name, name]).fetchall()
    wanted = sessions * _RANGES_A_SESSION if sessions > 1 else 1
    if rate is not None:
        _refuse_rate(can_read_ranges=can_read_ranges, has_pages=pages is not None, name=name)
        wanted = max(wanted, int(size) // (rate * _RANGE_S))
    count = min(wanted, int(pages or 0) // LEAST_PAGES)
    if count < 2:
        return whole
    starts = [int(pages) * number // count for number in range(count)]
    ranges = [
        sql.SQL("ctid >= {} AND ctid < {}").format(_first_row(start), _first_row(end))
        for start, end in pairwise(starts)
    ]
    last = sql.SQL("ctid >= {}").format(_first_row(starts[-1]))
    range_s = 0.0 if rate is None else int(size) * sessions / count / rate
    return PageRanges((*ranges, last), extent, range_s)


def _refuse_rate(*, can_read_ranges: bool, has_pages: bool, name: str) -> None:
    if not can_read_ranges:
        raise PgsluiceError(
            "reading a table at a limited rate needs PostgreSQL 14 or newer",
            hint="verify without a rate: leave out the option --rate of `pgsluice verify CONFIG`, "
            "or the rate in `verify` of the subscription",
        )
    if not has_pages:
        raise PgsluiceError(
            f"to read table {name} at a limited rate, the role of pgsluice needs the privilege to "
            "read its column ctid, which only a grant on the whole table has",
            hint=f"GRANT SELECT ON {name} TO the role of the dsn; or verify without a rate: leave "
            "out the option --rate of `pgsluice verify CONFIG`, or the rate in `verify` of the "
            "subscription",
        )


def _first_row(page: int) -> sql.Composed:
    return sql.SQL("{}::tid").format(sql.Literal(f"({page},0)"))


def read_ranges(
    connections: Sequence[Connection],
    ranges: PageRanges,
    query: Callable[[sql.Composed], sql.Composed],
    take: Callable[[Sequence[tuple[Any, ...]]], object],
) -> None:
    """Read the rows of a query over all ranges, in any order, some thousand at a time.

    Args:
        connections: connections in one snapshot; each reads one range after another.
        query: makes the query of a range.
        take: is called with rows, by one thread at a time.

    Raises:
        psycopg.Error: of the first query that failed; the others end with their range.
        PgsluiceError: asked to stop.
    """
    conditions, taking, failed = iter(ranges.conditions), Lock(), Event()

    def read(connection: Connection) -> None:
        for condition in conditions:  # which the threads share
            if failed.is_set():
                return
            try:
                began_at = time.monotonic()
                rows = connection.cursor().stream(query(condition))
                with closing(cast("Generator[tuple[Any, ...]]", rows)):  # as it is documented
                    while some := [*islice(rows, _ROWS_AT_ONCE)]:
                        with taking:
                            take(some)
                ranges.extent.pause_until(began_at + ranges.range_s)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(len(connections)) as threads:
        for _ in threads.map(read, connections):
            pass
