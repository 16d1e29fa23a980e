"""Whether new partitions had rows when they were attached: the stream does not have these rows.

A partition had no rows if it has none now: all later inserts are sent. It also had none if it was
created by ``CREATE TABLE … PARTITION OF``. The catalog proves that, because its rows have the
number of the command that wrote them (``cmin``). Both ``CREATE TABLE`` and ``ATTACH PARTITION``
write a row to ``pg_inherits``, but only ``ATTACH`` also writes the columns' rows in
``pg_attribute`` again, with the same command number:

=====================  ==============  ==============  ===================  ===========
seen on 11 to 18       system columns  other columns   pg_class             pg_inherits
=====================  ==============  ==============  ===================  ===========
CREATE … PARTITION OF  n               n               n + 1, or > i        i > n
CREATE, then ATTACH    n               i               i, or more           i > n
=====================  ==============  ==============  ===================  ===========

The WAL does not have these numbers. After a crash or a promotion, replayed rows have command number
0, unless the whole page was in the WAL. So the row of ``pg_class`` has to have another number than
0, and nothing is proved for a table whose row another transaction has written since. PostgreSQL 10
mostly writes ``pg_inherits`` with command n, which proves nothing.

The proof is valid only if the partition was published from its start, as a partition of a published
table is. If the partition itself was added to a publication, it may have had rows before that; up
to PostgreSQL 12, managed publications add partitions in this way.

The xmin of the partition's own rows is not used: a savepoint or an UPDATE hides the transaction
that inserted a row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgsluice.catalog import Connection

_FIRST_UNAWARE, _FIRST_AWARE = 130000, 150000


def notices_partitions(connection: Connection) -> bool:
    """Whether the server notices during a connection that a table becomes a partition, or no longer
    is one.

    PostgreSQL 13 and 14 decide once for each connection and table how it is published, and again
    only after a change of a publication. Before 13, each partition is listed in the publication.
    Source: pgoutput.c of 14, ``rel_sync_cache_relation_cb``, which leaves ``replicate_valid`` as it
    is; in 15 it does not.
    """
    return not _FIRST_UNAWARE <= connection.info.server_version < _FIRST_AWARE


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """What is known about the rows that new partitions had when they were attached.

    Attributes:
        empty: they had no rows.
        created: those of ``empty`` that CREATE TABLE … PARTITION OF created, according to the
            catalog, and that were never attached again.
        unknown: they may have had rows before they were attached by the transaction that created
            them, or before they were published.
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
    published_are_sent: bool = True,
) -> NewPartitions:
    """Find out which partitions had no rows when they were attached; one query for all of them, and
    one for each partition without proof.

    Args:
        connection: a connection to the source; a partition that is locked for longer than its
            ``lock_timeout`` counts as one with rows.
        partitions: OIDs of partitions at any level. A partitioned one has the rows of the
            partitions below it.
        published_later: partitions that may have been added to a publication when they already had
            rows.
        emptied_are_sent: inserts into a partition that is empty now are sent, even if it had rows
            before it was attached: see :func:`notices_partitions`.
        published_are_sent: so are those into a partition that was published later, even if a
            transaction that is still open has written to it: see :func:`notices_publications`.
    """
    if not partitions:
        return NewPartitions()
    empty, unknown, created = set(), set(), set()
    creations = connection.execute(_CREATIONS, [list(partitions)]).fetchall()
    for oid, namespace, name, by_one_transaction, is_created in creations:
        is_proven = is_created and oid not in published_later
        is_sent = emptied_are_sent and (published_are_sent or oid not in published_later)
        if is_proven:
            created.add(int(oid))
        if is_proven or (is_sent and not _may_have_rows(connection, namespace, name)):
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
