"""Takes the snapshots of copy runs.

On servers that do not notice that a table becomes a partition
(:func:`pgsluice.catalog.notices_partitions`), a table that was filled and then attached sends no
change, or goes on to be sent as a table of its own, until the connection ends.

A new connection that begins behind the change of the partition decides rightly. So before a table's
snapshot is taken in a database with partitioned tables, capture receives what was committed until
now, and is given a new connection. What the old one has not sent lies before the snapshot, which
has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg

from pgsluice.catalog import insert_lsn, notices_partitions
from pgsluice.errors import SourceRefused, SourceUnreachable
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots import Snapshot, temporary_snapshot
from pgsluice.subscription.base.received import Received
from pgsluice.subscription.copies.progress import CopyCounts
from pgsluice.subscription.copies.site import CopySite

logger = logging.getLogger(__name__)

_SNAPSHOT_TIMEOUT_S = 300.0
_MOST_TRIES = 10
_NOT_RENEWED = ()
# A table may be attached to any level below one that is copied.
_PARTITIONS = """
SELECT pg_catalog.count(*),
       pg_catalog.md5(pg_catalog.string_agg(
           pg_catalog.concat_ws(' ', i.inhrelid::oid, i.inhparent::oid, i.xmin), ','
           ORDER BY i.inhrelid))
FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS t (oid),
     pg_catalog.pg_partition_tree(t.oid::pg_catalog.regclass) AS p
     JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = p.relid
"""
# Any table may be a partition, or may have been one of a partitioned table that is there.
_HAS_PARTITIONED = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relkind = 'p')
"""


def copy_snapshot(
    site: CopySite, oids: Collection[int], stop: threading.Event
) -> AbstractContextManager[Snapshot | None]:
    """A snapshot for these tables, for as long as the block lasts.

    Returns:
        it; None: the run ends.

    Raises:
        SourceUnreachable, SourceRefused, SpoolFull: there is none now; later there may be.
    """
    dsn, counts = site.config.source.dsn, site.counts
    if site.looks.has_aware_streams:
        return new_snapshot(dsn, counts, oids, stop.is_set)
    return behind_partitions(dsn, counts, oids, site.received, stop.is_set)


@contextmanager
def new_snapshot(
    dsn: str, counts: CopyCounts, oids: Collection[int], is_stopping: Callable[[], bool]
) -> Iterator[Snapshot]:
    """A snapshot for as long as the block lasts; meanwhile the counts say what tables wait for.

    Args:
        oids: the tables that it is for.

    Raises:
        SourceRefused, SourceUnreachable: as :func:`pgsluice.snapshots.temporary_snapshot`.
    """

    def tend() -> bool:
        # Only now: a server that refuses at once, again and again, has nothing of these.
        counts.wait(oids, "a snapshot, which follows the transactions open now")
        counts.tend()  # or what is said would be taken for old
        return is_stopping()

    with ExitStack() as held:
        try:
            snapshot = held.enter_context(temporary_snapshot(dsn, _SNAPSHOT_TIMEOUT_S, tend))
        except (SourceRefused, SourceUnreachable) as error:
            counts.wait(oids, f"a snapshot; the last try failed: {error.what}")
            raise
        yield snapshot


@contextmanager
def behind_partitions(
    dsn: str,
    counts: CopyCounts,
    oids: Collection[int],
    received: Received,
    is_stopping: Callable[[], bool],
) -> Iterator[Snapshot | None]:
    """A snapshot after which the stream has all changes of partitions.

    Args:
        dsn: of the source.
        counts: takes what is waited for.
        oids: the tables that it is for.
        received: the run's capture.
        is_stopping: the stream is left as it is soon after it is true.

    Returns:
        it; None: the run ends, and the stream does not have them.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be asked; capture did not come so far,
            or kept its connection; partitions came and went all the time; or there is no snapshot.
            The tables may be copied later.
        SpoolFull: there is no room for what has to be received before.
    """
    for _ in range(_MOST_TRIES):
        before = _renewed(dsn, counts, oids, received, is_stopping)
        if before == _NOT_RENEWED:
            yield None
            return
        with new_snapshot(dsn, counts, oids, is_stopping) as taken:
            if before is None or is_stopping() or before == _partitions(dsn, oids):
                yield taken
                return
    raise SourceUnreachable(
        f"partitions of the tables to copy came or went during each of {_MOST_TRIES} snapshots",
        hint="the tables stay as they are, and the copy is tried again",
    )


def _renewed(
    dsn: str,
    counts: CopyCounts,
    oids: Collection[int],
    received: Received,
    is_stopping: Callable[[], bool],
) -> tuple[Any, ...] | None:
    """Give capture a new connection that begins behind all partitions that there are now.

    Returns:
        these partitions; None: that is not needed; :data:`_NOT_RENEWED`: the run ends before.
    """
    with _connected(dsn) as connection:
        if notices_partitions(connection):
            return None
        if connection.execute(_HAS_PARTITIONED).fetchall() != [(True,)]:
            return None
        partitions = connection.execute(_PARTITIONS, [list(oids)]).fetchone()
        end = insert_lsn(connection)  # a commit is seen before it is flushed, if it does not wait

    def tend() -> bool:
        counts.tend()  # or what is said would be taken for old
        return is_stopping()

    counts.wait(oids, "capture, which has to receive what was committed until now")
    try:
        if not received.come_to(end, tend) or is_stopping():
            return _NOT_RENEWED
        logger.info(
            "capture gets a new connection: PostgreSQL 13 and 14 do not notice partitions that "
            "were attached or detached"
        )
        received.connect_again(tend)
    except SourceUnreachable as error:
        counts.wait(oids, f"capture; the last try failed: {error.what}")
        raise
    return partitions


def _partitions(dsn: str, oids: Collection[int]) -> tuple[Any, ...] | None:
    with _connected(dsn) as connection:
        return connection.execute(_PARTITIONS, [list(oids)]).fetchone()


@contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with (
        connect_sql(dsn, application="partitions of copies") as connection,
        source_errors("asking for partitions"),
    ):
        yield connection
