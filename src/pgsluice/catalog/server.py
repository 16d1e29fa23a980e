"""The server's version, settings and privileges, and the state of a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgsluice.catalog import Connection
from pgsluice.lsn import Lsn
from pgsluice.sql import quote_identifier

LIMITS = "SET lock_timeout = '10s'; SET statement_timeout = '120s'"
"""Timeouts of catalog queries: they must not wait behind a migration; the next poll repeats
them."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server, and the privileges of our role.

    Attributes:
        version_num: 180004, 100023.
        version: as the server prints it, ``18.4``.
        max_slot_wal_keep_bytes: how much WAL slots may retain; None: no limit.
        idle_slot_timeout_s: a slot that nobody uses for longer is lost; None: it is not.
        has_replication: our role may replicate: as a superuser, by its REPLICATION attribute, or
            as a member of a managed service's replication role.
        may_create: the role may create publications in this database.
        is_read_only: its sessions may not write unless they ask for it
            (``default_transaction_read_only``).
    """

    version_num: int
    version: str
    database: str
    user: str
    wal_level: str
    max_replication_slots: int
    used_replication_slots: int
    max_wal_senders: int
    used_wal_senders: int
    max_slot_wal_keep_bytes: int | None
    idle_slot_timeout_s: float | None
    is_standby: bool
    has_replication: bool
    may_create: bool
    is_read_only: bool

    @property
    def writable_sql(self) -> str:
        """The statement that lets the role's sessions write, unless the dsn's own options make them
        read-only."""
        role, database = quote_identifier(self.user), quote_identifier(self.database)
        return f"ALTER ROLE {role} IN DATABASE {database} SET default_transaction_read_only = off;"


_SERVER = """
SELECT current_setting('server_version'), current_database(), current_user,
       current_setting('wal_level'),
       current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots),
       current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_catalog.pg_stat_get_wal_senders()),
       pg_catalog.pg_size_bytes(nullif(current_setting('max_slot_wal_keep_size', true), '-1')),
       nullif(extract(epoch FROM current_setting('idle_replication_slot_timeout', true)::interval)
           ::float8, 0),  -- from 18 on
       pg_catalog.pg_is_in_recovery(),
       r.rolsuper OR r.rolreplication OR EXISTS (
           SELECT FROM pg_catalog.pg_roles managed WHERE managed.rolname = 'rds_replication'
           AND pg_catalog.pg_has_role(current_user, managed.oid, 'MEMBER')),
       pg_catalog.has_database_privilege(current_database(), 'CREATE'),
       current_setting('default_transaction_read_only')::bool
FROM pg_catalog.pg_roles r
WHERE r.rolname = current_user
"""


def server_info(connection: Connection) -> ServerInfo:
    """Read the server's version, settings and our role's privileges."""
    row = connection.execute(_SERVER).fetchone()
    assert row is not None
    return ServerInfo(
        connection.info.server_version,
        row[0].partition(" ")[0],
        *row[1:],  # in the order of the fields
    )


_FLUSH_LSN = """CASE WHEN pg_catalog.pg_is_in_recovery()
    THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END"""


def flush_lsn(connection: Connection) -> Lsn:
    """The end of the WAL that the server can send: its flush LSN, on a standby its replay LSN."""
    row = connection.execute(f"SELECT ({_FLUSH_LSN})::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


_INSERT_LSN = """
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
        ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text,
       pg_catalog.current_setting('wal_block_size')::bigint,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))
"""
_PAGE_HEADER_BYTES, _SEGMENT_HEADER_BYTES = 24, 40


def insert_lsn(connection: Connection) -> Lsn:
    """The end of the last WAL record, flushed or not; on a standby the replay LSN.

    Every transaction that an earlier snapshot of any session sees was committed before this LSN.
    """
    row = connection.execute(_INSERT_LSN).fetchone()
    assert row is not None
    end, block_bytes, segment_bytes = Lsn.parse(row[0]), row[1], row[2]
    # The next record begins behind a page's header. An idle server does not send that much.
    if end % segment_bytes == _SEGMENT_HEADER_BYTES or end % block_bytes == _PAGE_HEADER_BYTES:
        return Lsn(end - end % block_bytes)
    return end


_TIMELINE = """
SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())
WHERE NOT pg_catalog.pg_is_in_recovery()
"""


def wal_timeline(connection: Connection) -> int:
    """The timeline of the WAL that the server writes; 0 for a standby, which writes none."""
    row = connection.execute(_TIMELINE).fetchone()
    return 0 if row is None else int(row[0][:8], 16)


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One row of pg_replication_slots.

    Attributes:
        plugin, database: None for a physical slot.
        active_pid: the walsender that uses the slot.
        confirmed_flush_lsn: the acknowledged LSN; None for a physical slot, or while a slot is
            being created.
        retained_bytes: WAL from the slot's restart_lsn to the server's end; None when the slot
            holds none, or lost it.
        wal_status: ``reserved``, ``extended``, ``unreserved``, ``lost``; None before 13.
        invalidation_reason: why the slot can no longer be used; None before 17.
        two_phase: the slot decodes prepared transactions.
        is_synced: the slot is on a standby and maintained by slot synchronisation (17+).
        safe_wal_bytes: WAL that can still be written before the slot may be lost; None without
            max_slot_wal_keep_size, and before 13.
        inactive_since: when the last walsender left the slot, in seconds since 1970; None: one uses
            it, or the server is older than 17.
    """

    name: str
    plugin: str | None
    database: str | None
    is_temporary: bool
    is_active: bool
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    retained_bytes: int | None
    wal_status: str | None
    invalidation_reason: str | None
    two_phase: bool
    failover: bool
    is_synced: bool
    safe_wal_bytes: int | None = None
    inactive_since: float | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the server removed WAL that the slot needs."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


# As JSON, because most versions added columns to the view: a missing column is a missing key.
_SLOT = f"""
SELECT to_jsonb(s), pg_catalog.pg_wal_lsn_diff({_FLUSH_LSN}, s.restart_lsn)::bigint,
       extract(epoch FROM (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8
FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s
"""  # noqa: S608 - a constant


def slot_info(connection: Connection, name: str) -> SlotInfo | None:
    """The state of a slot; None if there is no slot with this name."""
    answer = connection.execute(_SLOT, [name]).fetchone()
    if answer is None:
        return None
    row: dict[str, Any] = answer[0]
    confirmed = row["confirmed_flush_lsn"]
    return SlotInfo(
        name=name,
        plugin=row["plugin"],
        database=row["database"],
        is_temporary=row["temporary"],
        is_active=row["active"],
        active_pid=row["active_pid"],
        confirmed_flush_lsn=None if confirmed is None else Lsn.parse(confirmed),
        retained_bytes=None if answer[1] is None else max(0, answer[1]),
        wal_status=row.get("wal_status"),
        invalidation_reason=row.get("invalidation_reason"),
        two_phase=bool(row.get("two_phase")),
        failover=bool(row.get("failover")),
        is_synced=bool(row.get("synced")),
        safe_wal_bytes=row.get("safe_wal_size"),
        inactive_since=answer[2],
    )
