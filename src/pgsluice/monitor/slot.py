"""The slot as the server shows it, on servers from 10 on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from pgsluice.lsn import Lsn


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A row of pg_replication_slots.

    Attributes:
        plugin: None for a physical slot.
        active_pid: the walsender that uses it; None: nobody does.
        wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``; None before 13.
        confirmed_flush: what was acknowledged; None for a physical slot.
        retained_bytes: the WAL that it keeps; None when it keeps none.
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    wal_status: str | None
    confirmed_flush: Lsn | None
    retained_bytes: int | None


_FLUSHED = (
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
    "ELSE pg_current_wal_flush_lsn() END"
)


def read_slot(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> SlotFacts | None:
    """The slot of this name; None: there is none."""
    wal_status = "wal_status" if connection.info.server_version >= 130000 else "NULL::text"
    row = connection.execute(
        f"SELECT slot_name, plugin, database, active_pid, {wal_status},"  # noqa: S608
        f" confirmed_flush_lsn, pg_wal_lsn_diff({_FLUSHED}, restart_lsn)::bigint"
        " FROM pg_replication_slots WHERE slot_name = %s".encode(),
        [name],
    ).fetchone()
    if row is None:
        return None
    confirmed = None if row[5] is None else Lsn.parse(row[5])
    retained = None if row[6] is None else max(int(row[6]), 0)
    return SlotFacts(row[0], row[1], row[2], row[3], row[4], confirmed, retained)


def read_flush_lsn(connection: psycopg.Connection[tuple[Any, ...]]) -> Lsn:
    """How far the server's WAL is durable; on a standby: replayed."""
    row = connection.execute(f"SELECT {_FLUSHED}".encode()).fetchone()
    assert row is not None
    return Lsn.parse(row[0])
