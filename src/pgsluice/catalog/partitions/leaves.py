"""The partitions of tables, with the sizes of leaf partitions, so that a copy can divide them.

A leaf partition with a pending ``DETACH CONCURRENTLY`` is excluded, as in queries of the table and
in publications.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import psycopg

from pgsluice.catalog import Connection
from pgsluice.catalog.rights import table_rights
from pgsluice.definitions.source_tables import LeafSize

_FIRST_WITH_PAGE_RANGES = 140000
_LOCK_TIMEOUT = "1s"
"""The lock timeout: reading a table's size needs a lock that ALTER TABLE and TRUNCATE block."""


def attached(server_version: int) -> str:
    """A condition on ``pg_inherits i``, to append to another one."""
    return "AND NOT i.inhdetachpending" if server_version >= 140000 else ""


def below_cte(server_version: int) -> str:
    """``below(root, oid)``: a CTE with each table of a parameter and all partitions below it.

    The parameter is an array of OIDs. Needs WITH RECURSIVE.
    """
    return f"""
below(root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS oid
    UNION ALL
    SELECT b.root, i.inhrelid
    FROM below b
    JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid {attached(server_version)}
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)"""  # noqa: S608 - the fragment is one of two constants


_TREES = b"""
WITH RECURSIVE above(oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT i.inhparent
    FROM above a
    JOIN pg_catalog.pg_class c ON c.oid = a.oid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid
), below(oid) AS (
    SELECT oid FROM above
    UNION
    SELECT i.inhrelid
    FROM below b
    JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT oid FROM below
"""


def partition_trees(connection: Connection, oids: Collection[int]) -> frozenset[int]:
    """The given tables and, whole, the partition trees that they belong to."""
    rows = connection.execute(_TREES, [list(oids)]).fetchall()
    return frozenset(int(oid) for (oid,) in rows)


_PARTITION_COLUMNS = """
WITH RECURSIVE {below}
SELECT DISTINCT b.root, a.attname
FROM below b
JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = b.oid
CROSS JOIN LATERAL unnest(p.partattrs::int2[]) AS k(attnum)
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = b.oid AND a.attnum = k.attnum AND k.attnum > 0
"""


def partition_columns_of(
    connection: Connection, oids: Collection[int]
) -> dict[int, frozenset[str | None]]:
    """The partition key columns of partitioned tables and of those below them; None for an
    expression. Other tables are missing."""
    if not oids:
        return {}
    columns: dict[int, set[str | None]] = {}
    query = _PARTITION_COLUMNS.format(below=below_cte(connection.info.server_version))
    for root, column in connection.execute(query, [list(oids)]).fetchall():
        columns.setdefault(int(root), set()).add(column)
    return {root: frozenset(names) for root, names in columns.items()}


_SIZES = """
WITH RECURSIVE {below}
SELECT b.root, c.oid, n.nspname, c.relname,
       coalesce(pg_catalog.pg_table_size(c.oid), 0),
       coalesce(pg_catalog.pg_relation_size(c.oid), 0)
           / pg_catalog.current_setting('block_size')::bigint,
       EXISTS (SELECT FROM pg_catalog.pg_am a JOIN pg_catalog.pg_proc p ON p.oid = a.amhandler
               WHERE a.oid = c.relam AND p.proname = 'heap_tableam_handler')
FROM below b
JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relkind = 'r'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY b.root, c.oid
"""


def finds_pages(connection: Connection) -> bool:
    """Whether the server can read a range of a table's pages without reading the others."""
    return connection.info.server_version >= _FIRST_WITH_PAGE_RANGES


def leaf_sizes(connection: Connection, oids: Collection[int]) -> dict[int, tuple[LeafSize, ...]]:
    """The leaf partitions of each table in the connection's snapshot; a plain table is its own
    leaf.

    A table with a locked leaf is missing in the result, because its size cannot be read now.

    Args:
        connection: in a transaction.
    """
    sizes = _sizes(connection, list(oids))
    if sizes is None:  # one of them is locked
        sizes = {}
        for oid in oids:
            sizes |= _sizes(connection, [oid]) or {}
    return sizes


def _sizes(connection: Connection, oids: list[int]) -> dict[int, tuple[LeafSize, ...]] | None:
    query = _SIZES.format(below=below_cte(connection.info.server_version))
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            rows = connection.execute(query, [oids]).fetchall()
    except psycopg.errors.LockNotAvailable:
        return None
    rights = table_rights(connection, {int(oid) for _, oid, *_ in rows})
    leaves: defaultdict[int, list[LeafSize]] = defaultdict(list)
    for root, oid, namespace, name, size_bytes, pages, is_heap in rows:
        right = rights.get(int(oid))
        is_readable = right is not None and right.may_read and right.sees_all_rows
        leaf = LeafSize(
            int(oid), namespace, name, int(size_bytes), int(pages), is_readable, is_heap
        )
        leaves[int(root)].append(leaf)
    return {root: tuple(some) for root, some in leaves.items()}
