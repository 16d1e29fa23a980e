"""A slot that is created, and the transactions for which its creation waits.

Creating a logical slot waits for the end of all transactions that had written when it started, and
``statement_timeout`` does not end that wait. So pgsluice has its own timeout, and its error names
those transactions. Source: the manual, section "Streaming Replication Protocol".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from pgsluice.lsn import Lsn


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """The answer to CREATE_REPLICATION_SLOT.

    Attributes:
        consistent_point: the position of the snapshot: the stream has all later commits.
        snapshot_name: the exported snapshot, which can be imported until the next command on the
            connection that created the slot; None if none was exported.
    """

    name: str
    consistent_point: Lsn
    snapshot_name: str | None


def takes_failover(server_version: int, *, is_standby: bool, two_phase: bool) -> bool:
    """Whether a new slot can be a failover slot, which standbys synchronize (docs/adr/0009).

    Yes on a primary from 17 on; but 17 refuses it together with two_phase.
    """
    major = server_version // 10000
    return major >= 17 and not is_standby and not (two_phase and major == 17)


# Every user may see the locks on transaction ids, but not the details in pg_stat_activity.
_BLOCKERS = """
SELECT DISTINCT ON (l.virtualtransaction)
       l.pid, coalesce(a.application_name, ''), coalesce(a.datname, p.database, ''), p.gid,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)),
       pg_catalog.to_char(a.query_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
"""


def name_blockers(connection: psycopg.Connection[Any]) -> list[str]:
    """The open transactions that have written, oldest first, each as a short description.

    Only members of pg_read_all_stats see how long other transactions have been open.
    """
    rows = connection.execute(_BLOCKERS).fetchall()
    rows.sort(key=lambda row: -float(row[4] or 0))
    blockers = []
    for pid, application, dbname, gid, age_s, query_start in rows:
        who = f"prepared transaction {gid!r}" if pid is None else f"pid {pid}"
        program = f" ({application})" if application else ""
        where = f" in {dbname}" if dbname else ""
        query = f", its last query began at {query_start} UTC" if query_start else ""
        age = "" if age_s is None else f", open for {float(age_s):.0f} s"
        blockers.append(f"{who}{program}{where}{age}{query}")
    return blockers
