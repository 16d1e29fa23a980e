"""Whether the catalog has changed since the last query; one query that returns few rows.

Pollers read the whole catalog only if it changed: for 5,000 tables it has tens of thousands of
rows, and usually nothing changes. For each catalog table that catalog refreshes and relation
metadata use, the query compares:

- the number of rows: rows were deleted;
- the rows of transactions that had not ended at the last query, by OID and xmin: rows were written.
  Every row that became visible since then has such a transaction.

A comparison becomes invalid with another server process, whose history may differ, and after a time
(:data:`FULL_EVERY_S`), because decisions also depend on catalog tables that are not compared, such
as roles.

Its figure: a poll of the catalog in which nothing has changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pgsluice.catalog import Connection, one_snapshot

FULL_EVERY_S = 600.0
"""Read the whole catalog at least this often, in seconds."""

# Temporary tables, indexes, TOAST tables and views come and go, and nobody asks for them.
_OURS = """
SELECT c.oid, c.xmin AS version FROM pg_catalog.pg_class c
WHERE c.relkind IN ('r', 'p', 'f', 'c') AND c.relpersistence <> 't' AND c.oid >= 16384
"""
# Name, and the rows' identity (two columns) and xmin.
_CATALOGS = {
    "class": "SELECT oid::bigint, 0, version FROM ours",
    "attribute": """
SELECT a.attrelid::bigint, a.attnum, a.xmin
FROM pg_catalog.pg_attribute a JOIN ours ON ours.oid = a.attrelid WHERE a.attnum > 0
""",
    "index": """
SELECT i.indexrelid::bigint, 0, i.xmin
FROM pg_catalog.pg_index i JOIN ours ON ours.oid = i.indrelid
""",
    "inherits": "SELECT inhrelid::bigint, inhseqno, xmin FROM pg_catalog.pg_inherits",
    "namespace": "SELECT oid::bigint, 0, xmin FROM pg_catalog.pg_namespace WHERE nspname !~ '^pg_'",
    "type": """
SELECT t.oid::bigint, 0, t.xmin
FROM pg_catalog.pg_type t LEFT JOIN ours ON ours.oid = t.typrelid
WHERE t.oid >= 16384 AND t.typelem = 0 AND (t.typrelid = 0 OR ours.oid IS NOT NULL)
""",
    "enum": "SELECT oid::bigint, 0, xmin FROM pg_catalog.pg_enum",
    "publication": "SELECT oid::bigint, 0, xmin FROM pg_catalog.pg_publication",
    "publication_rel": "SELECT oid::bigint, 0, xmin FROM pg_catalog.pg_publication_rel",
}
_CATALOGS_15 = {
    **_CATALOGS,
    "publication_namespace": "SELECT oid::bigint, 0, xmin FROM pg_catalog.pg_publication_namespace",
}
_SERVER = """
SELECT pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot())::text,
       pg_catalog.pg_postmaster_start_time()::text || pg_catalog.pg_is_in_recovery()::text
           || pg_catalog.current_database()::text
"""
_XIDS = 2**32


@dataclass(frozen=True, slots=True)
class _Seen:
    """The result of one query.

    Attributes:
        server: identifies the server process that answered.
        xmin: all transactions before it had ended; 64 bits.
        counts: the number of rows of each catalog table.
        recent: the rows of transactions from ``xmin`` on.
        until: when a comparison becomes invalid, by the monotonic clock.
    """

    server: str
    xmin: int
    counts: Mapping[str, int]
    recent: frozenset[tuple[str, int]]
    until: float


class CatalogChanges:
    """Compares the catalog with its state at the last query.

    Args:
        valid_s: how long a comparison is valid, in seconds.
    """

    def __init__(self, valid_s: float = FULL_EVERY_S) -> None:
        self._valid_s = valid_s
        self._seen: _Seen | None = None

    def forget(self) -> None:
        """Report a change at the next query, because the last one could not be handled."""
        self._seen = None

    def have_come(self, connection: Connection) -> bool:
        """Whether the catalog may have changed since the last call.

        Call this *before* reading the catalog: a change in between is then seen twice, never
        missed.
        """
        before = self._seen
        with one_snapshot(connection):
            ((xmin, server),) = connection.execute(_SERVER).fetchall()
            since = int(xmin) if before is None else before.xmin
            rows = connection.execute(_query(connection), {"since": str(since % _XIDS)}).fetchall()
        counts = {catalog: count for catalog, count, _ in rows}
        written = frozenset(
            (f"{catalog}:{row}", int(row.rpartition(":")[2]))
            for catalog, _, recent in rows
            for row in recent or ()
        )
        now = _Seen(
            server=server,
            xmin=int(xmin),
            counts=counts,
            recent=frozenset(row for row in written if not is_older_xid(row[1], int(xmin))),
            until=time.monotonic() + self._valid_s,
        )
        if before is None or before.server != server or time.monotonic() >= before.until:
            self._seen = now
            return True
        self._seen = replace(now, until=before.until)
        return before.counts != counts or before.recent != written


def is_older_xid(xid: int, other: int) -> bool:
    """Whether a 32-bit transaction ID is older than a 64-bit one."""
    return 0 < (other - xid) % _XIDS < _XIDS // 2


def _query(connection: Connection) -> bytes:
    catalogs = _CATALOGS_15 if connection.info.server_version >= 150000 else _CATALOGS
    parts = " UNION ALL ".join(
        f"""
SELECT '{name}', count(*), array_agg(id || ':' || part || ':' || version::text)
    FILTER (WHERE pg_catalog.age(version) <= since.age)
FROM ({query}) AS {name} (id, part, version), since GROUP BY since.age
"""  # noqa: S608 - fragments are constants of ours
        for name, query in catalogs.items()
    )
    since = "SELECT pg_catalog.age(%(since)s::xid) AS age"
    return f"WITH ours AS ({_OURS}), since AS ({since}) {parts}".encode()
