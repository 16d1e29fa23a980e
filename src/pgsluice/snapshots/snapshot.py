"""Snapshots with a position: a replication slot exports them when it is created."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from pgsluice.catalog import Connection
from pgsluice.errors import SourceUnreachable
from pgsluice.lsn import Lsn

_GONE = (
    "the snapshot for a copy is gone from the server: it was restarted, or it ended the connection "
    "that held it"
)
_SEES = "SELECT pg_catalog.txid_current_snapshot()::text"


class SnapshotGone(SourceUnreachable):
    """The server no longer has this snapshot."""

    is_lasting = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An exported snapshot and its place in the WAL.

    Attributes:
        name: for SET TRANSACTION SNAPSHOT; valid while the connection that exported it is idle.
        position: the snapshot has exactly the transactions that committed before this LSN.
        timeline: the timeline of the position; 0 if unknown.
        sees: its transactions, as txid_current_snapshot() prints them; empty before the first
            import.
        taken_at: when it was first imported, in seconds since 1970; 0: not yet.
        readers: an advisory lock that each importing session shares, so that the keeper can detect
            readers; the negative number is a second one. 0: none.
    """

    name: str
    position: Lsn
    timeline: int = 0
    sees: str = ""
    taken_at: float = 0.0
    readers: int = 0


def import_snapshot(connection: Connection, snapshot: Snapshot) -> Snapshot:
    """Start a transaction that uses the snapshot; other errors are psycopg's.

    After a restart, the server may give the same name to another snapshot, so the visible
    transactions are compared.

    Returns:
        the snapshot, with its transactions and the time of its first import.

    Raises:
        SnapshotGone: the connection that exported it has ended.
    """
    name = sql.Literal(snapshot.name)
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue) as error:
        raise SnapshotGone(_GONE) from error
    ((sees,),) = connection.execute(_SEES).fetchall()
    if snapshot.sees not in ("", sees):
        raise SnapshotGone(_GONE)
    if snapshot.readers:
        # The keeper holds the second lock until it has seen that the first one is taken. So it sees
        # each first reader, however fast that reads.
        for lock in (snapshot.readers, -snapshot.readers):
            connection.execute("SELECT pg_catalog.pg_advisory_lock_shared(%s)", [lock])
    return replace(snapshot, sees=sees, taken_at=snapshot.taken_at or time.time())


def export_again(connection: Connection, snapshot: Snapshot) -> Snapshot:
    """Import a snapshot, and export it again for the duration of this transaction.

    Returns:
        the snapshot under its new name.

    Raises:
        SnapshotGone: as :func:`import_snapshot`.
    """
    imported = import_snapshot(connection, snapshot)
    ((name,),) = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchall()
    return replace(imported, name=name)


@contextmanager
def temporary_snapshot(
    dsn: str,
    timeout_s: float,
    is_stopping: Callable[[], bool] = lambda: False,
    name_blockers_to: Callable[[list[str]], None] = lambda blockers: None,
) -> Iterator[Snapshot]:
    """The snapshot of a temporary slot, which is dropped at the end of the context.

    Creating the slot waits for all writing transactions that are open now. It is given up after
    ``timeout_s``, with an error that names these transactions, or when ``is_stopping()`` is true;
    ``name_blockers_to`` gets them meanwhile.

    Raises:
        PgsluiceError: asked to stop.
        SourceRefused: no free slot, or open transactions did not end in time.
        SourceUnreachable: no connection.
    """
    from pgsluice.replication import ReplicationConnection  # a keeper does not need the stream

    connection = ReplicationConnection.connect(dsn)
    try:
        timeline = connection.identify_system().timeline
        name = f"pgsluice_copy_{os.getpid()}_{secrets.token_hex(4)}"
        slot = connection.create_slot(
            name,
            temporary=True,
            export_snapshot=True,
            timeout_s=timeout_s,
            is_stopping=is_stopping,
            name_blockers_to=name_blockers_to,
        )
        assert slot.snapshot_name is not None
        # Another command on this connection would end the snapshot, so none is sent.
        yield Snapshot(slot.snapshot_name, slot.consistent_point, timeline)
    finally:
        connection.close()
