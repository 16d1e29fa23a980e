"""Whether the catalog already shows the changes of a committed transaction.

The server sends a transaction as soon as its commit is in the WAL. Snapshots see it a moment later,
when the committing process has finished; or much later, if the commit waits for a synchronous
standby. Until then, the catalog shows the state before the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum

from pgsluice.catalog import Connection

_SNAPSHOT = "SELECT pg_catalog.txid_current_snapshot()::text"
_XIDS = 2**32
# FIRST 2 (a, "b c"), ANY 1 (*), or names alone.
_NUMBER = re.compile(r"^\s*(?:(?:FIRST|ANY)\s+)?\d+\s*(?=\()", re.IGNORECASE)
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,()"]+)')


class TransactionStatus(StrEnum):
    """The outcome of a transaction or subtransaction, in the words of ``txid_status``."""

    IN_PROGRESS = "in progress"
    """It is open, or prepared."""
    COMMITTED = "committed"
    ABORTED = "aborted"


def sees_transaction(connection: Connection, xid: int) -> bool:
    """Whether queries from now on see the changes of a committed transaction.

    Args:
        connection: in autocommit mode.
        xid: the top-level transaction's xid, 32 bits; at most 2^31 transactions old.
    """
    _, xmax, running = current_snapshot(connection)
    whole = _whole_xid(xid, xmax)
    return whole < xmax and str(whole) not in running


def transaction_statuses(
    connection: Connection, xids: Collection[int]
) -> dict[int, TransactionStatus]:
    """The outcomes of transactions and subtransactions.

    Args:
        connection: in autocommit mode.
        xids: xids of 32 bits; at most 2^31 transactions old.

    Returns:
        the status by xid; transactions that the server no longer knows are missing.
    """
    _, xmax, _ = current_snapshot(connection)
    whole = {_whole_xid(xid, xmax): xid for xid in xids}
    later = {whole[xid]: TransactionStatus.IN_PROGRESS for xid in whole if xid >= xmax}
    rows = connection.execute(
        "SELECT xid, pg_catalog.txid_status(xid) FROM pg_catalog.unnest(%s::bigint[]) AS xid",
        [[xid for xid in whole if xid < xmax]],
    )
    known = {whole[xid]: TransactionStatus(status) for xid, status in rows if status is not None}
    return {**later, **known}


def current_snapshot(connection: Connection) -> tuple[int, int, list[str]]:
    """A snapshot's xmin and xmax (64 bits), and the IDs of the transactions that were running."""
    ((snapshot,),) = connection.execute(_SNAPSHOT).fetchall()
    xmin, xmax, running = snapshot.split(":")
    return int(xmin), int(xmax), running.split(",")


def _whole_xid(xid: int, xmax: int) -> int:
    """The 64-bit ID of a transaction: the one nearest to ``xmax``."""
    return xmax + (xid - xmax + _XIDS // 2) % _XIDS - _XIDS // 2


def counts_as_standby(connection: Connection, application: str) -> bool:
    """Whether commits may wait for a replication connection with this application_name.

    With ``synchronous_standby_names = '*'``, every replication connection counts as a standby.
    """
    ((setting,),) = connection.execute("SHOW synchronous_standby_names").fetchall()
    return is_named(setting, application)


def is_named(setting: str, application: str) -> bool:
    """Whether ``synchronous_standby_names`` names an application_name."""
    names = {quoted or plain for quoted, plain in _NAME.findall(_NUMBER.sub("", setting))}
    return "*" in names or application.lower() in {name.lower() for name in names}
