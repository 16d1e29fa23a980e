"""SQL for the leaf partitions that a query of a partitioned table reads.

A leaf with a pending ``DETACH CONCURRENTLY`` is excluded, as in queries of the table and in
publications.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg


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


def partition_trees(connection: psycopg.Connection[Any], oids: Collection[int]) -> frozenset[int]:
    """The given tables and, whole, the partition trees that they belong to."""
    rows = connection.execute(_TREES, [list(oids)]).fetchall()
    return frozenset(int(oid) for (oid,) in rows)
