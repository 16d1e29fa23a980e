"""Snapshots of tables on servers that do not notice that a table becomes a partition.

There (:func:`pgsluice.catalog.notices_partitions`) a table that was filled and then attached sends
no change, or goes on to be sent as a table of its own, until the connection ends.

A new connection that begins behind the change of the partition decides rightly. So before a table's
snapshot is taken in a database with partitioned tables, capture receives what was committed until
now, and is given a new connection. What the old one has not sent lies before the snapshot, which
has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg

from pgsluice.catalog import insert_lsn, notices_partitions
from pgsluice.errors import SourceUnreachable
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots import Snapshot
from pgsluice.subscription.base.received import Received

logger = logging.getLogger(__name__)

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


@contextmanager
def behind_partitions(
    dsn: str,
    oids: Collection[int],
    received: Received,
    snapshot: Callable[[], AbstractContextManager[Snapshot]],
    say: Callable[[str], None],
    is_stopping: Callable[[], bool],
) -> Iterator[Snapshot | None]:
    """A snapshot after which the stream has all changes of partitions.

    Args:
        dsn: of the source.
        oids: the tables that it is for.
        received: the run's capture.
        snapshot: takes one.
        say: takes what is waited for.
        is_stopping: the stream is left as it is soon after it is true.

    Returns:
        it; None: the run ends, and the stream does not have them.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be asked; capture did not come so far,
            or kept its connection; partitions came and went all the time; and what ``snapshot``
            raises. The tables may be copied later.
        SpoolFull: there is no room for what has to be received before.
    """
    for _ in range(_MOST_TRIES):
        before = _renewed(dsn, oids, received, say, is_stopping)
        if before == _NOT_RENEWED:
            yield None
            return
        with ExitStack() as held:
            taken = held.enter_context(snapshot())
            if before is None or is_stopping() or before == _partitions(dsn, oids):
                yield taken
                return
    raise SourceUnreachable(
        f"partitions of the tables to copy came or went during each of {_MOST_TRIES} snapshots",
        hint="the tables stay as they are, and the copy is tried again",
    )


def _renewed(
    dsn: str,
    oids: Collection[int],
    received: Received,
    say: Callable[[str], None],
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
    say("capture, which has to receive what was committed until now")
    try:
        if not received.come_to(end, is_stopping) or is_stopping():
            return _NOT_RENEWED
        logger.info(
            "capture gets a new connection: PostgreSQL 13 and 14 do not notice partitions that "
            "were attached or detached"
        )
        received.connect_again(is_stopping)
    except SourceUnreachable as error:
        say(f"capture; the last try failed: {error.what}")
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
