"""Whether the catalog shows what a committed transaction changed.

The server sends a transaction as soon as its commit is in the WAL. Snapshots see it only when the
committing process has ended it, a moment later; or much later, if the commit waits for a
synchronous standby. Until then the catalog is that of the time before the transaction.
"""

from __future__ import annotations

from typing import Any

import psycopg

_SNAPSHOT = "SELECT pg_catalog.txid_current_snapshot()::text"
_XIDS = 2**32


def sees_transaction(connection: psycopg.Connection[Any], xid: int) -> bool:
    """Whether queries from now on see what a transaction did, if it has committed.

    Args:
        connection: in autocommit mode.
        xid: of the top-level transaction, 32 bits; not more than 2^31 transactions ago.
    """
    ((snapshot,),) = connection.execute(_SNAPSHOT).fetchall()
    _, xmax, running = snapshot.split(":")
    # The nearest 64-bit ID.
    distance = (xid - int(xmax) + _XIDS // 2) % _XIDS - _XIDS // 2
    return distance < 0 and str(int(xmax) + distance) not in running.split(",")
