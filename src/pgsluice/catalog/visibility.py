"""Whether the catalog shows what a committed transaction changed.

The server sends a transaction as soon as its commit is in the WAL. Snapshots see it only when the
committing process has ended it, a moment later; or much later, if the commit waits for a
synchronous standby. Until then the catalog is that of the time before the transaction.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg

_SNAPSHOT = "SELECT pg_catalog.txid_current_snapshot()::text"
_XIDS = 2**32
# FIRST 2 (a, "b c"), ANY 1 (*), or names alone.
_NUMBER = re.compile(r"^\s*(?:(?:FIRST|ANY)\s+)?\d+\s*(?=\()", re.IGNORECASE)
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,()"]+)')


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


def counts_as_standby(connection: psycopg.Connection[Any], application: str) -> bool:
    """Whether commits may wait for a replication connection of that application_name.

    A server with ``synchronous_standby_names = '*'`` takes every one for a standby.
    """
    ((setting,),) = connection.execute("SHOW synchronous_standby_names").fetchall()
    return is_named(setting, application)


def is_named(setting: str, application: str) -> bool:
    """Whether ``synchronous_standby_names`` names an application_name."""
    names = {quoted or plain for quoted, plain in _NAME.findall(_NUMBER.sub("", setting))}
    return "*" in names or application.lower() in {name.lower() for name in names}
