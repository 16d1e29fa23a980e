"""The first start: creates publications, slot and spool in an order that survives any crash.

1. The publications: the server cannot decode changes from before a publication was created.
2. The spool's identity, without a start: an *intent*, with the server's flush LSN.
3. The slot.
4. The spool's start, registered durably at the slot's consistent point.

If DDL has committed while the server created the slot, the slot is created again: the server's
first catalog snapshot lacks what committed in its state BUILDING_SNAPSHOT (snapbuild.c), so it
would not send new columns and newly published tables until the next DDL.

A crash between 2 and 4, or a server that refuses the slot, leaves an intent. If the slot exists at
the next start, at or past the intent's LSN, and was never read, it was created for this intent. It
is dropped and created again, because its snapshot is gone. The intent is written again, because the
configuration may have changed. If it was read (14+), or is being read, it was made for another
spool meanwhile.

A slot that a DBA created beforehand is used if it was never read: a pgoutput slot of the same
database, inactive, newer than the publications, and without sent transactions in the server's
statistics (14+). The spool starts at its confirmed position, and the intent's LSN marks the slot as
not created by pgsluice. Any other slot is refused.

After the first start, a missing slot is an error; it is never created again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pgsluice.capture.source.slot import (
    EARLIER_ENDS_S,
    STALE_WALSENDER_TIMEOUT_S,
    check_identity,
    check_slot_kind,
    generated_columns,
    in_use,
    options_in_force,
    other_slot,
    pgoutput_options,
    refuse_other_owner,
    session_with_retry,
)
from pgsluice.catalog import Connection
from pgsluice.catalog.changes import CatalogChanges
from pgsluice.catalog.publications.managed import ensure_publications
from pgsluice.catalog.server import SlotInfo, flush_lsn, server_info, slot_info
from pgsluice.config import Config
from pgsluice.errors import ForeignSource, PgsluiceError, SourceRefused, SpoolBusy
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection, source_errors, takes_failover
from pgsluice.spool import Spool, SpoolIdentity
from pgsluice.spool.lock import writer_lock

_ADOPTED = Lsn(2**63 - 1)
"""The LSN in the intent for a slot that pgsluice did not create, so that it is never dropped."""
_FAILOVER = (
    " as a failover slot: standbys can take it over, and a server with synchronized_standby_slots "
    "sends it only what these have (docs/failover.md)"
)
_SLOTS_BESIDE_DDL = 5
"""How often a slot is created again because DDL has committed meanwhile."""
_BESIDE_DDL = (
    "DDL committed during each of the attempts to create slot %s (%d). Until the next DDL, the "
    "server may not send columns and published tables that are new since the last attempt\n  → "
    "run `pgsluice verify CONFIG` when the DDL is over"
)
logger = logging.getLogger(__name__)
_RETRY_S = 0.25
_SPOOL_POLL_S = 1.0


@dataclass(slots=True)
class PreparedSource:
    """A source and a spool that belong together; a context manager.

    Attributes:
        consistent_point: where the spool started.
        snapshot_name: the snapshot of a slot that this call created; it can be imported until
            :meth:`close`. None if the slot already existed, or no snapshot was requested.
        created: a sentence about the slot that this call created; empty: it existed.
    """

    spool: Spool
    consistent_point: Lsn
    snapshot_name: str | None = None
    _snapshot_holder: ReplicationConnection | None = None
    created: str = ""

    def close(self) -> None:
        """End the connection that holds the slot's snapshot, if there is one."""
        self.snapshot_name = None
        if self._snapshot_holder is not None:
            self._snapshot_holder.close()
            self._snapshot_holder = None

    def __enter__(self) -> PreparedSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prepare_source(
    config: Config, *, export_snapshot: bool, is_stopping: Callable[[], bool] = lambda: False
) -> PreparedSource:
    """Create publications, slot and spool at the first start; afterwards only open the spool.

    Args:
        export_snapshot: keep a new slot's snapshot for the first copies.
        is_stopping: polled while waiting for the server and its open transactions; true: give up.

    Raises:
        PgsluiceError: asked to stop.
        SourceUnreachable: no connection within ``connect_timeout_s``.
        SourceRefused: the server is unsuitable, or the slot has another owner.
        ForeignSource, ForeignSpool: the spool belongs to another source.
        SpoolBusy: another process is doing the same.
        SpoolError: the spool cannot be written.
    """
    place = config.spool.place
    if (ready := _ready(config)) is not None:
        return ready
    with writer_lock(place.folder, EARLIER_ENDS_S):
        if (ready := _ready(config)) is not None:
            return ready
        source = config.source
        with session_with_retry(source, is_stopping) as sql:
            if place.is_remote:
                _refuse_another_first_start(sql, source.slot)
                if (ready := _ready(config)) is not None:
                    return ready
            connection = ReplicationConnection.connect(
                source.conninfo, source.connect_timeout_s, silence_s=source.silence_s
            )
            try:
                return _first_start(config, sql, connection, export_snapshot, is_stopping)
            except BaseException:
                connection.close()
                raise


def await_spool(config: Config, is_stopping: Callable[[], bool]) -> PreparedSource:
    """The spool that another process makes, once it is there.

    Args:
        is_stopping: polled; true: give up.

    Raises:
        PgsluiceError: asked to stop.
        ForeignSource, ForeignSpool, SpoolError: it is of another slot, or cannot be read.
    """
    while (ready := _ready(config)) is None:
        if is_stopping():
            raise PgsluiceError("asked to stop while there was no spool yet")
        time.sleep(_SPOOL_POLL_S)
    return ready


def _refuse_another_first_start(sql: Connection, slot: str) -> None:
    """Take a lock of the server for the rest of this connection: machines share no other."""
    key = int.from_bytes(hashlib.sha256(f"pgsluice {slot}".encode()).digest()[:8], signed=True)
    deadline = time.monotonic() + EARLIER_ENDS_S
    with source_errors("locking the first start"):
        while True:
            row = sql.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", [key]).fetchone()
            if row is not None and row[0]:
                return
            if time.monotonic() > deadline:
                raise SpoolBusy(
                    f"another pgsluice process is creating slot {slot} at this moment",
                    hint="only one process can receive from a slot: stop the other process, or "
                    "let that one run instead",
                )
            time.sleep(_RETRY_S)


def _ready(config: Config) -> PreparedSource | None:
    """The spool if its start is registered, else None."""
    if not Spool.exists(config.spool.place):
        return None
    spool = Spool.open(config.spool.place)
    if spool.identity.slot != config.source.slot:
        raise ForeignSource(
            f"the spool {spool.place} belongs to slot {spool.identity.slot!r}, not to slot "
            f"{config.source.slot!r}",
            hint="each slot has its own spool: set path in [spool] to another folder, or slot = "
            f'"{spool.identity.slot}" in [source]',
        )
    start = spool.chain_start()
    return None if start is None else PreparedSource(spool, start.registered)


def _first_start(
    config: Config,
    sql: Connection,
    connection: ReplicationConnection,
    export_snapshot: bool,
    is_stopping: Callable[[], bool],
) -> PreparedSource:
    source = config.source
    options = pgoutput_options(source, source.publications, connection.server_version)
    with source_errors("reading the catalog"):
        existing = slot_info(sql, source.slot)
        # Before publications are made, which the user would have to drop again.
        if existing is not None:
            refuse_other_owner(existing, sql.info.dbname)
        report = ensure_publications(
            sql, source.publications, generated_columns=generated_columns(config)
        )
        intended_at = flush_lsn(sql)
        is_standby = server_info(sql).is_standby
    system = connection.identify_system()
    place = config.spool.place
    spool = Spool.open(place) if Spool.exists(place) else None
    if spool is not None:
        check_identity(spool.identity, system)
    identity = SpoolIdentity(
        system_identifier=system.system_id,
        timeline=system.timeline,
        database=system.dbname,
        slot=source.slot,
        publications=report.names,
        options=options_in_force(options),
        intended_at=intended_at,
    )
    if existing is not None and (
        spool is None or not _is_of_intent(existing, spool.identity) or _was_used(sql, source.slot)
    ):
        if report.created:
            raise SourceRefused(
                f"slot {existing.name!r} is older than the publications that pgsluice has just "
                "created, so the server cannot use them for this slot",
                hint=_drop_hint(existing),
            )
        connection.close()
        return _adopt(config, sql, existing, spool, replace(identity, intended_at=_ADOPTED))
    if existing is not None:
        connection.drop_slot(existing.name, wait=True, timeout_s=STALE_WALSENDER_TIMEOUT_S)
    spool = _intend(config, spool, identity)
    is_failover = takes_failover(
        connection.server_version, is_standby=is_standby, two_phase=source.two_phase
    )
    failpoint("slot.before_create")
    catalog = CatalogChanges(math.inf)
    with source_errors("reading the catalog"):
        catalog.have_come(sql)
    for attempts_left in range(_SLOTS_BESIDE_DDL, -1, -1):
        slot = connection.create_slot(
            source.slot,
            export_snapshot=export_snapshot,
            two_phase=source.two_phase,
            failover=is_failover,
            is_stopping=is_stopping,
        )
        with source_errors("reading the catalog"):
            if not catalog.have_come(sql):
                break
        if not attempts_left:
            logger.warning(_BESIDE_DDL, source.slot, 1 + _SLOTS_BESIDE_DDL)
            break
        connection.drop_slot(source.slot, wait=True)
    failpoint("slot.after_create")
    spool.register_start(slot.consistent_point)
    created = f"created slot {source.slot}{_FAILOVER if is_failover else ''}"
    if slot.snapshot_name is None:
        connection.close()
    return PreparedSource(spool, slot.consistent_point, slot.snapshot_name, connection, created)


def _is_of_intent(slot: SlotInfo, identity: SpoolIdentity) -> bool:
    """Whether the slot may have been created for this intent; it has no position before its
    creation ends. Nobody has received from such a slot."""
    if slot.plugin != "pgoutput" or slot.database != identity.database:
        return False
    return identity.intended_at != _ADOPTED and (
        slot.confirmed_flush_lsn is None
        or (slot.confirmed_flush_lsn >= identity.intended_at and not slot.is_active)
    )


def _intend(config: Config, spool: Spool | None, identity: SpoolIdentity) -> Spool:
    """Write the intent of a spool, or update that of an earlier attempt to the configuration."""
    if spool is None:
        return Spool.create(config.spool.place, identity)
    spool.replace_identity(replace(identity, spool_id=spool.identity.spool_id))
    return spool


def _adopt(
    config: Config,
    sql: Connection,
    slot: SlotInfo,
    spool: Spool | None,
    identity: SpoolIdentity,
) -> PreparedSource:
    """Start a spool at a slot that a DBA created."""
    check_slot_kind(slot, identity.database, two_phase=config.source.two_phase)
    if slot.is_active:
        raise in_use(slot)
    if slot.confirmed_flush_lsn is None or _was_used(sql, slot.name):
        raise SourceRefused(
            f"slot {slot.name!r} already exists and was used, but the spool {config.spool.place} "
            "is new: pgsluice does not have the changes that were read from the slot",
            hint=_drop_hint(slot),
        )
    spool = _intend(config, spool, identity)
    spool.register_start(slot.confirmed_flush_lsn)
    return PreparedSource(spool, slot.confirmed_flush_lsn)


def _drop_hint(slot: SlotInfo) -> str:
    return (
        f"if no other program needs the slot, SELECT pg_drop_replication_slot('{slot.name}'); and "
        "start pgsluice again; else choose another slot name in [source]: "
        f"{other_slot(slot.name, 'new')}"
    )


def _was_used(sql: Connection, slot: str) -> bool:
    """Whether the server's statistics count anything sent through the slot (14 and newer)."""
    if sql.info.server_version < 140000:
        return False
    with source_errors("reading the slot's statistics"):
        row = sql.execute(
            "SELECT total_txns FROM pg_catalog.pg_stat_replication_slots WHERE slot_name = %s",
            [slot],
        ).fetchone()
    return row is not None and row[0] > 0
