"""Snapshots that have a position: those of a replication slot."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An exported snapshot and its place in the WAL.

    Attributes:
        name: what SET TRANSACTION SNAPSHOT takes; good while its maker's connection is idle.
        position: transactions that committed before it are in the snapshot, and no others.
        timeline: whose position it is; 0 when it is not known.
    """

    name: str
    position: Lsn
    timeline: int = 0


def import_snapshot(connection: psycopg.Connection[Any], name: str) -> None:
    """Begin a transaction that sees what the snapshot sees; errors are psycopg's."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))


@contextmanager
def temporary_snapshot(
    dsn: str, timeout_s: float, is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[Snapshot]:
    """A snapshot of a TEMPORARY slot, which goes with its connection at the block's end.

    The slot's creation waits for every writing transaction that is open now; after
    ``timeout_s`` it is given up with an error that names them, and when ``is_stopping`` says so.

    Raises:
        PgsluiceError: asked to stop.
        SourceRefused: no free slot, or open transactions did not end in time.
        SourceUnreachable: no connection.
    """
    keeper = ReplicationConnection.connect(dsn, timeout_s=timeout_s)
    try:
        timeline = keeper.identify_system().timeline
        name = f"pgsluice_copy_{os.getpid()}_{secrets.token_hex(4)}"
        slot = keeper.create_slot(
            name, temporary=True, snapshot="export", timeout_s=timeout_s, is_stopping=is_stopping
        )
        assert slot.snapshot_name is not None  # asked for by "export"
        # The next command on this connection would end the snapshot: there is none.
        yield Snapshot(slot.snapshot_name, slot.consistent_point, timeline)
    finally:
        keeper.close()
