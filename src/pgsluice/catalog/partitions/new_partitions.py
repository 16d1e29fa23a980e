"""Whether new partitions came with rows: the stream does not have these.

A partition came without rows if it has none now: whatever is inserted from now on is sent. It also
did if ``CREATE TABLE … PARTITION OF`` made it. For that the catalog is asked, since its rows have
the number of the command that wrote them (``cmin``). Both ``CREATE TABLE`` and ``ATTACH PARTITION``
write a row to ``pg_inherits``, but only ``ATTACH`` writes the columns' rows in ``pg_attribute``
again, by the same command:

=====================  ==============  ==============  ===================  ===========
seen on 11 to 18       system columns  other columns   pg_class             pg_inherits
=====================  ==============  ==============  ===================  ===========
CREATE … PARTITION OF  n               n               n + 1, or > i        i > n
CREATE, then ATTACH    n               i               i, or more           i > n
=====================  ==============  ==============  ===================  ===========

WAL does not have these numbers. After a crash or a promotion, replayed rows look like those of
command 0, unless the whole page was in the WAL. So the row of ``pg_class`` has to have a number
other than 0, and a table whose row another transaction has written since is not proven. 10 mostly
writes ``pg_inherits`` by command n, which proves nothing.

The proof counts only where the partition was published from the beginning, as those of a published
table are. Where the partition itself was put into a publication, rows may have come before that: up
to 12 this is how pgsluice's publications get their partitions.

What the rows of the partition itself say is not used: a savepoint hides the transaction that
inserted a row, and so does an UPDATE.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]


_FIRST_UNAWARE, _FIRST_AWARE = 130000, 150000


def notices_partitions(connection: Connection) -> bool:
    """Whether the server notices in a stream that a table becomes a partition, or is one no more.

    PostgreSQL 13 and 14 decide once for each connection and table how it is published, and again
    only if a publication changes. Before 13, each partition is listed in the publication. Source:
    pgoutput.c of 14, ``rel_sync_cache_relation_cb``, which leaves ``replicate_valid`` as it is; in
    15 it does not.
    """
    return not _FIRST_UNAWARE <= connection.info.server_version < _FIRST_AWARE


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """What is known of the rows that partitions came with.

    Attributes:
        empty: they came without rows.
        created: those of them of which the catalog proves that CREATE TABLE … PARTITION OF made
            them: they have never been attached anew.
        unknown: rows may have come before they were attached by the transaction that made them, or
            before they were published.
    """

    empty: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    created: frozenset[int] = frozenset()


# xmax: a command that was rolled back leaves its own number. The table's own creation is told by
# the row of a system column, which nothing writes again.
_CREATIONS = """
SELECT c.oid, n.nspname, c.relname, made.xmin::text = i.xmin::text,
    made.xmin::text = i.xmin::text
    AND c.xmin::text = i.xmin::text
    AND c.cmin::text NOT IN ('0', i.cmin::text)
    AND i.xmax::text = '0'
    AND made.cmin::text::bigint < i.cmin::text::bigint
    AND EXISTS (
        SELECT FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0
        AND a.xmin::text = made.xmin::text AND a.cmin::text = made.cmin::text
        AND a.xmax::text = '0'
    )
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute made ON made.attrelid = c.oid AND made.attname = 'ctid'
WHERE i.inhrelid = ANY (%s::oid[])
"""


def inspect_new_partitions(
    connection: Connection,
    partitions: Collection[int],
    published_later: Collection[int] = (),
    *,
    emptied_are_sent: bool = True,
) -> NewPartitions:
    """Find out which partitions came without rows. One query for all, and one for each of which
    the catalog proves nothing.

    Args:
        connection: to the source; a partition that is locked for longer than its ``lock_timeout``
            counts as one with rows.
        partitions: OIDs of partitions at any level. A partitioned one has the rows of those below.
        published_later: those of which some may have been put into a publication with rows.
        emptied_are_sent: what is inserted into a partition that has no rows now is sent, though it
            may have had some before it was attached: see :func:`notices_partitions`.
    """
    if not partitions:
        return NewPartitions()
    empty, unknown, created = set(), set(), set()
    creations = connection.execute(_CREATIONS, [list(partitions)]).fetchall()
    for oid, namespace, name, by_one_transaction, is_created in creations:
        is_proven = is_created and oid not in published_later
        if is_proven:
            created.add(int(oid))
        if is_proven or (emptied_are_sent and not _may_have_rows(connection, namespace, name)):
            empty.add(int(oid))
        elif by_one_transaction:
            unknown.add(int(oid))
    return NewPartitions(frozenset(empty), frozenset(unknown), frozenset(created))


def _may_have_rows(connection: Connection, namespace: str, name: str) -> bool:
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(namespace, name))
    try:
        with connection.transaction():
            (row,) = connection.execute(query).fetchall()
    except (
        psycopg.errors.InsufficientPrivilege,  # the copy says which right is missing
        psycopg.errors.LockNotAvailable,
        psycopg.errors.QueryCanceled,
    ):
        return True
    return bool(row[0])
