"""Snapshots of partitioned tables on servers that do not notice that a table becomes a partition.

There (:func:`pgsluice.catalog.notices_partitions`) a table that was filled and then attached sends
no change, or goes on to be sent as a table of its own, until the connection ends.

A new connection that begins behind the change of the partition decides rightly. So before such a
table's snapshot is taken, capture receives what was committed until now, and is given a new
connection. What the old one has not sent lies before the snapshot, which has it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg

from pgsluice.catalog import insert_lsn, notices_partitions, slot_info
from pgsluice.config import Config
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots import Snapshot
from pgsluice.spool import SpoolReader

logger = logging.getLogger(__name__)

_POLL_S = 0.1
# All of them: a table may be attached to any level below one that is copied.
_PARTITIONS = """
SELECT pg_catalog.count(*),
       pg_catalog.md5(pg_catalog.string_agg(
           pg_catalog.concat_ws(' ', inhrelid::oid, inhparent::oid, xmin), ',' ORDER BY inhrelid))
FROM pg_catalog.pg_inherits
"""
_IS_PARTITIONED = """
SELECT pg_catalog.count(*) > 0 FROM pg_catalog.pg_class
WHERE relkind = 'p' AND oid = ANY (%s::pg_catalog.oid[])
"""


@contextmanager
def behind_partitions(
    config: Config,
    oids: Collection[int],
    snapshot: Callable[[], AbstractContextManager[Snapshot]],
    wait: Callable[[str], None],
    is_stopping: Callable[[], bool],
) -> Iterator[Snapshot]:
    """A snapshot after which the stream has all changes of partitions.

    Args:
        oids: the tables that it is for.
        snapshot: takes one.
        wait: takes what is waited for, and is called until it is over.
        is_stopping: the stream is left as it is soon after it is true.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be asked, and what ``snapshot`` raises.
    """
    while True:
        before = _renewed(config, oids, wait, is_stopping)
        with ExitStack() as held:
            taken = held.enter_context(snapshot())
            if before is None or is_stopping() or before == _partitions(config):
                yield taken
                return


def _renewed(
    config: Config,
    oids: Collection[int],
    wait: Callable[[str], None],
    is_stopping: Callable[[], bool],
) -> tuple[Any, ...] | None:
    """Give capture a new connection that begins behind all partitions that there are now.

    Returns:
        these partitions; None: that is not needed.
    """
    with _connected(config) as connection:
        if notices_partitions(connection):
            return None
        if connection.execute(_IS_PARTITIONED, [list(oids)]).fetchall() != [(True,)]:
            return None
        partitions = connection.execute(_PARTITIONS).fetchone()
        end = insert_lsn(connection)  # a commit is seen before it is flushed, if it does not wait
    reader = SpoolReader(config.spool.path)
    while reader.frontier() < end and not is_stopping():
        wait("capture, which has to receive what was committed until now")
        time.sleep(_POLL_S)
    if not is_stopping():
        logger.info(
            "capture gets a new connection: PostgreSQL 13 and 14 do not notice partitions that "
            "were attached or detached"
        )
        with _connected(config) as connection:
            _end_connection(connection, config.source.slot, is_stopping)
    return partitions


def _end_connection(
    connection: psycopg.Connection[Any], slot: str, is_stopping: Callable[[], bool]
) -> None:
    """End the walsender that uses a slot, if one does; capture connects again."""
    info = slot_info(connection, slot)
    if info is None or info.active_pid is None:
        return
    connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", [info.active_pid])
    ended = info.active_pid
    while (info := slot_info(connection, slot)) is not None and info.active_pid == ended:
        if is_stopping():
            return
        time.sleep(_POLL_S)


def _partitions(config: Config) -> tuple[Any, ...] | None:
    with _connected(config) as connection:
        return connection.execute(_PARTITIONS).fetchone()


@contextmanager
def _connected(config: Config) -> Iterator[psycopg.Connection[Any]]:
    with (
        connect_sql(config.source.dsn, application="partitions of copies") as connection,
        source_errors("asking for partitions"),
    ):
        yield connection
