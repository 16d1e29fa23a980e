"""The state of the server before a stream, and whether it matches the spool."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from pgsluice.capture.source.slot import check_slot_kind
from pgsluice.capture.source.timeline import check_slot_is_there
from pgsluice.catalog import Connection
from pgsluice.catalog.publications.managed import PublicationReport, ensure_publications
from pgsluice.catalog.publications.publications import (
    UnnoticedPublications,
    publications_of,
    unnoticed_publications,
)
from pgsluice.catalog.publications.published import relations_of
from pgsluice.catalog.server import SlotInfo, flush_lsn, server_info, slot_info
from pgsluice.config import SourceConfig
from pgsluice.definitions.published import disagreeing
from pgsluice.errors import ForeignSource, Gap, PublicationMissing, SlotLost, SourceUnreachable
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.spool.layout import FRONTIER

_STATUS_S = 10.0
FIRST_TO_SKIP_MISSING = 180000
"""The first version that decodes although a requested publication is missing."""
_LOSSES = {
    "wal_removed": ("its WAL was removed", "raise max_slot_wal_keep_size, then "),
    "idle_timeout": (
        "it was unused for longer than the server's idle_replication_slot_timeout allows",
        "raise that setting, or set it to 0, then ",
    ),
}
"""Why a slot can no longer be used, by pg_replication_slots.invalidation_reason, and what to do
first."""

_SERVER = """
SELECT s.setting::bigint, pg_catalog.pg_postmaster_start_time()::text,
    ARRAY(SELECT p.pubname::text FROM pg_catalog.pg_publication p)
FROM pg_catalog.pg_settings s WHERE s.name = 'wal_sender_timeout'
"""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of the server.

    Attributes:
        flush_lsn: the server's flush LSN (on a standby: its replay LSN).
        status_s: the longest interval of status updates that the server accepts, in seconds.
        publications: the publications to request.
        all_publications: the names of all publications of the database.
        started_at: the server's start time as text; the same value only if it has not restarted.
        unnoticed: the state of publications before pgsluice updated them, if the server does not
            notice changes (:func:`unnoticed_publications`).
    """

    slot: SlotInfo
    flush_lsn: Lsn
    is_standby: bool
    status_s: float
    publications: PublicationReport
    all_publications: frozenset[str]
    started_at: str
    unnoticed: UnnoticedPublications | None


def read_source_state(
    dsn: str,
    source: SourceConfig,
    requested: Collection[str],
    generated_columns: Collection[str] | None,
    note_slot: Callable[[SlotInfo | None], None],
) -> SourceState:
    """Query the server's state, and update the managed publications.

    Args:
        dsn: the connection string of the server that will stream.
        requested: the publications of the last replication request.
        generated_columns: see :func:`ensure_publications`.
        note_slot: gets the slot as it is, also one that is missing.

    Raises:
        SlotLost: the slot does not exist and will not appear.
        SourceRefused: the server is unsuitable.
        SourceUnreachable: it could not be queried, or its slot cannot be read yet.
    """
    with (
        connect_sql(dsn, timeout_s=source.connect_timeout_s, silence_s=source.silence_s) as sql,
        source_errors("reading the catalog"),
    ):
        server = server_info(sql)
        found = slot_info(sql, source.slot)
        note_slot(found)
        slot = check_slot_is_there(found, source.slot, server)
        unnoticed = unnoticed_publications(sql, source.slot)
        publications = ensure_publications(sql, source.publications, requested, generated_columns)
        _refuse_disagreeing(sql, publications.names)
        flushed = flush_lsn(sql)
        row = sql.execute(_SERVER).fetchone()
    timeout_ms, started_at, names = row or (0, "", [])
    return SourceState(
        slot=slot,
        flush_lsn=flushed,
        is_standby=server.is_standby,
        status_s=min(_STATUS_S, timeout_ms / 4000) if timeout_ms else _STATUS_S,
        publications=publications,
        all_publications=frozenset(names),
        started_at=started_at,
        unnoticed=unnoticed,
    )


_HAS_LISTS = """
SELECT FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = ANY (%s::text[]) AND r.prattrs IS NOT NULL
"""


def _refuse_disagreeing(sql: Connection, names: Collection[str]) -> None:
    """Refuse publications that the walsender would refuse at the first change of a table."""
    has_lists = (
        sql.info.server_version >= 150000
        and sql.execute(_HAS_LISTS, [list(names)]).fetchone() is not None
    )
    found = publications_of(sql, names).values()
    if not has_lists and all(info.generated_columns == "none" for info in found):
        return
    # Row filters are printed by opening their tables: a migration may have locked one for long.
    sql.execute("SET lock_timeout = '5s'")
    with suppress(psycopg.errors.LockNotAvailable):
        if disagreement := disagreeing(relations_of(sql, names).values()):
            raise disagreement
    sql.execute("SET lock_timeout = 0")


def check_is_standby(connection: Connection) -> None:
    """Check, before received data becomes durable, that the server is still a standby.

    After a promotion, the walsender of a standby keeps sending, on another timeline, without
    reporting it (18). That data is past the switch point, and the spool could not tell its timeline
    later. So this connection ends, and the next one follows the new timeline.

    Raises:
        SourceUnreachable: it was promoted, or can no longer be queried.
    """
    with source_errors("asking whether the server still is a standby"):
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
    if row is None or not row[0]:
        raise SourceUnreachable("the standby was promoted: connecting again to follow it")


def check_publications(
    configured: PublicationReport, requested: Collection[str], server_version: int
) -> None:
    """Raise PublicationMissing if the server cannot decode because publications are missing.

    Before PostgreSQL 18, the server refuses to decode if one of them is missing; from 18 on it
    sends what the others publish. A publication that was never requested has to exist first: the
    server cannot decode changes from before its creation.
    """
    needed = {*configured.missing}
    if server_version >= FIRST_TO_SKIP_MISSING:
        needed -= {*requested}
    if needed:
        raise PublicationMissing(f"{configured.problem}; nothing is received until then")


def refuse_older_state(source: SourceState, frontier: Lsn) -> None:
    """Check that the server's WAL reaches the spool's received-through LSN.

    Raises:
        ForeignSource: the server was restored from an older state.
        SourceUnreachable: the server is a standby that has not reached that LSN yet.
    """
    if frontier > source.flush_lsn:
        problem = (
            f"the server's WAL ends at {source.flush_lsn}, but the spool has changes up to "
            f"{frontier}"
        )
        if source.is_standby:
            raise SourceUnreachable(f"{problem}: the standby is behind")
        raise ForeignSource(
            f"{problem}: the server was restored from an older state", hint=COPY_ALL_AGAIN
        )


def refuse_slot(
    slot: SlotInfo, database: str, frontier: Lsn | None, *, two_phase: bool, has_frontier: bool
) -> None:
    """Check that the slot still has everything after the spool's received-through LSN.

    Args:
        frontier: the received-through LSN; None: there is no spool yet.
        two_phase: the configured value.
        has_frontier: the spool has the file of its received-through LSN.

    Raises:
        SlotLost: the server removed WAL that the slot needs.
        Gap: the slot is past the received-through LSN.
        ForeignSource: the slot has another owner.
        SourceRefused: the slot was created with the other ``two_phase``.
    """
    check_slot_kind(slot, database, two_phase=two_phase)
    if slot.is_lost:
        why = slot.invalidation_reason or "wal_removed"  # None before 17
        reason, first_step = _LOSSES.get(why, (why, ""))
        raise SlotLost(
            f"slot {slot.name!r} is lost: {reason}", hint=f"{first_step}{COPY_ALL_AGAIN}"
        )
    if frontier is not None and (slot.confirmed_flush_lsn or 0) > frontier:
        stands = f"slot {slot.name!r} is at {slot.confirmed_flush_lsn}, past the spool's end"
        cause = "another process has read from the slot, or has recreated it"
        lost = f"the changes between these positions are lost: {COPY_ALL_AGAIN}"
        hint = lost
        if not has_frontier:
            cause += f", or the spool's file {FRONTIER} is missing"
            hint = f"restore the spool's file {FRONTIER} from a backup. If there is none, {lost}"
        raise Gap(f"{stands} {frontier}: {cause}", hint=hint, lsn=frontier)
