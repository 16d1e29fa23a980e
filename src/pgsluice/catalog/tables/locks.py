"""Locks on tables: takes them, and finds the sessions that hold them."""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import below_cte

# Only ACCESS EXCLUSIVE keeps others from reading. A session that waits for it does so, too: who
# comes later stands behind it.
_LOCKS = """
WITH RECURSIVE {below}
SELECT DISTINCT ON (b.root)
       b.root, n.nspname, c.relname, l.granted, l.pid, coalesce(a.application_name, ''), p.gid,
       pg_catalog.to_char(coalesce(a.xact_start, p.prepared) AT TIME ZONE 'UTC', 'HH24:MI:SS')
FROM below b
JOIN pg_catalog.pg_locks l ON l.locktype = 'relation' AND l.relation = b.oid
    AND l.mode = 'AccessExclusiveLock' AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
JOIN pg_catalog.pg_class c ON c.oid = b.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL
    AND l.virtualtransaction = '-1/' || p.transaction::text
ORDER BY b.root, l.granted DESC, l.pid
"""


def lock_for_reading(
    connection: Connection, relation: sql.Identifier, *, with_partitions: bool
) -> None:
    """Lock a table ACCESS SHARE until the transaction ends, as a query of its rows does.

    LOCK TABLE would take more: it also locks inheritance children, which are separate tables, and
    before 13 it needs a privilege on each partition.

    Args:
        with_partitions: the table is partitioned, and the query reads its partitions.

    Raises:
        psycopg.Error: the server's error: no such table, a missing privilege, or a lock of another
            session.
    """
    connection.execute(
        sql.SQL("SELECT FROM {}{} LIMIT 0").format(
            sql.SQL("" if with_partitions else "ONLY "), relation
        )
    )


def locked_tables(connection: Connection, oids: Collection[int]) -> dict[int, str]:
    """The tables that are locked by other sessions, each with a sentence about the session.

    A table counts as locked if one of its partitions is. This query takes no locks itself.
    """
    if not oids:
        return {}
    query = _LOCKS.format(below=below_cte(connection.info.server_version))
    rows = connection.execute(query, [list(oids)]).fetchall()
    return {int(oid): _sentence(*facts) for oid, *facts in rows}


def _sentence(
    namespace: str,
    name: str,
    is_granted: bool,
    pid: int | None,
    application: str,
    gid: str | None,
    began: str | None,
) -> str:
    who = f"prepared transaction {gid!r}" if pid is None else f"pid {pid}"
    program = f" ({application})" if application else ""
    since = f", whose transaction began at {began} UTC," if began else ""
    if is_granted:
        return f"{namespace}.{name} is locked by {who}{program}{since.removesuffix(',')}"
    return f"{who}{program}{since} waits to lock {namespace}.{name}"
