"""Whether the catalog shows what a committed transaction changed.

The server sends a transaction as soon as its commit is in the WAL. Snapshots see it only when the
committing process has ended it, a moment later; or much later, if the commit waits for a
synchronous standby. Until then the catalog is that of the time before the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from typing import Any

import psycopg

_SNAPSHOT = "SELECT pg_catalog.txid_current_snapshot()::text"
_XIDS = 2**32
# FIRST 2 (a, "b c"), ANY 1 (*), or names alone.
_NUMBER = re.compile(r"^\s*(?:(?:FIRST|ANY)\s+)?\d+\s*(?=\()", re.IGNORECASE)
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,()"]+)')


class TransactionStatus(StrEnum):
    """How a transaction or subtransaction ended, in the words of ``txid_status``."""

    IN_PROGRESS = "in progress"
    """It is open, or prepared."""
    COMMITTED = "committed"
    ABORTED = "aborted"


def sees_transaction(connection: psycopg.Connection[Any], xid: int) -> bool:
    """Whether queries from now on see what a transaction did, if it has committed.

    Args:
        connection: in autocommit mode.
        xid: of the top-level transaction, 32 bits; not more than 2^31 transactions ago.
    """
    xmax, running = _snapshot(connection)
    whole = _whole_xid(xid, xmax)
    return whole < xmax and str(whole) not in running


def transaction_statuses(
    connection: psycopg.Connection[Any], xids: Collection[int]
) -> dict[int, TransactionStatus]:
    """How transactions and subtransactions ended.

    Args:
        connection: in autocommit mode.
        xids: 32 bits; not more than 2^31 transactions ago.

    Returns:
        the status by xid; without those that the server does not know any more.
    """
    xmax, _ = _snapshot(connection)
    whole = {_whole_xid(xid, xmax): xid for xid in xids}
    later = {whole[xid]: TransactionStatus.IN_PROGRESS for xid in whole if xid >= xmax}
    rows = connection.execute(
        "SELECT xid, pg_catalog.txid_status(xid) FROM pg_catalog.unnest(%s::bigint[]) AS xid",
        [[xid for xid in whole if xid < xmax]],
    )
    known = {whole[xid]: TransactionStatus(status) for xid, status in rows if status is not None}
    return {**later, **known}


def _snapshot(connection: psycopg.Connection[Any]) -> tuple[int, list[str]]:
    """The first ID past all that had ended when a snapshot was taken, and those that ran."""
    ((snapshot,),) = connection.execute(_SNAPSHOT).fetchall()
    _, xmax, running = snapshot.split(":")
    return int(xmax), running.split(",")


def _whole_xid(xid: int, xmax: int) -> int:
    """The 64-bit ID of a transaction: the one that is nearest to ``xmax``."""
    return xmax + (xid - xmax + _XIDS // 2) % _XIDS - _XIDS // 2


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
