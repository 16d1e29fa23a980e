"""The status of the slot, the spool, and each subscription and table.

It is read from the server and from the spool's files, never from a running process. So it works
during and after ``run``, and while the server is down (the server's fields are then null). The
keys of :meth:`Status.to_json` must not change: other programs read them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pgsluice.capture.health import error_of, read_health
from pgsluice.catalog import SlotInfo, flush_lsn, slot_info
from pgsluice.config import Config, SinkConfig, SourceConfig
from pgsluice.errors import PgsluiceError
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.monitor.copies_status import CopiesStatus, read_copies
from pgsluice.monitor.spool_status import SpoolStatus, first_commit_s, read_spool
from pgsluice.replication import connect_sql, source_errors
from pgsluice.spool import (
    FormerTarget,
    Spool,
    SpoolReader,
    SubscriptionRecord,
    TableRecord,
    TableState,
    TargetName,
)
from pgsluice.spool.segments.retention import find_holds

_TIMEOUT_S = 5.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The server's side. If it did not answer, ``error`` says why and the other fields are None.

    Attributes:
        flush_lsn: up to where the server's WAL is durable.
        slot: None also if the slot does not exist.
    """

    slot_name: str
    slot: SlotInfo | None = None
    flush_lsn: Lsn | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        slot = self.slot
        return {
            "slot": self.slot_name,
            "exists": slot is not None if self.error is None else None,
            "active": None if self.error else slot is not None and slot.active_pid is not None,
            "confirmed_flush_lsn": _text(slot.confirmed_flush_lsn if slot else None),
            "retained_bytes": slot.retained_bytes if slot else None,
            "wal_status": slot.wal_status if slot else None,
            "flush_lsn": _text(self.flush_lsn),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """What capture said last of itself.

    Attributes:
        is_running: its process exists on this machine.
        phase: what it does, or how it ended.
        server_end: how far it knows the server to have sent everything; None if it does not stream.
        message: what is in its way; None if nothing is.
        times: how often in a row it was so.
    """

    is_running: bool = False
    phase: str | None = None
    server_end: Lsn | None = None
    message: str | None = None
    times: int = 1

    @classmethod
    def read(cls, config: Config) -> CaptureStatus:
        """From capture's file in the spool; empty without one."""
        health = read_health(config.spool.path)
        if health is None:
            return cls()
        is_running = health.is_alive() and health.phase is not CapturePhase.STOPPED
        streams = is_running and health.phase is CapturePhase.STREAMING
        error = error_of(health.error) if health.error else None
        return cls(
            is_running,
            str(health.phase) if is_running or error else None,
            Lsn.parse(health.server_end) if streams else None,
            str(error) if error is not None else health.message,
            health.times,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "running": self.is_running,
            "phase": self.phase,
            "message": self.message,
            "times": self.times,
        }


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """One subscription.

    Attributes:
        position: None before its first start.
        lag_bytes: None if the server's position is unknown.
        lag_s: 0 if everything received is applied.
        former: targets that stand still, because a renamed table left them.
        advice: by the tables' ``schema.table``: what another setting of the sink would gain.
        copies: how far the copies are.
    """

    name: str
    mode: str
    sink: str
    position: Lsn | None
    lag_bytes: int | None
    lag_s: float | None
    tables: tuple[TableRecord, ...]
    is_enabled: bool
    is_configured: bool
    former: Mapping[TargetName, FormerTarget] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    copies: CopiesStatus = field(default_factory=CopiesStatus)

    def state_of(self, table: TableRecord, state: TableState) -> str:
        """A table's state as PostgreSQL has it (pg_subscription_rel.srsubstate).

        A copied table (``f``) is ``s`` while its position is past the subscription's: it waits for
        the stream to reach it.
        """
        is_ahead = self.position is not None and table.applied_through > self.position
        return "s" if state is TableState.COPIED and is_ahead else str(state)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "mode": self.mode,
            "sink": self.sink,
            "position": _text(self.position),
            "lag_bytes": self.lag_bytes,
            "lag_s": self.lag_s,
            "tables": [
                {
                    **_table_json(table),
                    "state": self.state_of(table, table.state),
                    "advice": self.advice.get(table.title),
                    "copy": None if copy is None else copy.to_json(),
                }
                for table in self.tables
                for copy in [self.copies.tables.get(table.target_name)]
            ],
            "copies": self.copies.to_json(),
            "former_targets": [
                {"schema": schema, "table": table, "target": left.target, "why": left.why}
                for (schema, table), left in sorted(self.former.items())
            ],
            "enabled": self.is_enabled,
            "configured": self.is_configured,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that ``pgsluice status`` shows."""

    source: SourceStatus
    spool: SpoolStatus
    subscriptions: tuple[SubscriptionStatus, ...]
    capture: CaptureStatus = field(default_factory=CaptureStatus)

    def to_json(self) -> dict[str, Any]:
        """What ``pgsluice status --json`` prints."""
        return {
            "source": self.source.to_json(),
            "spool": self.spool.to_json(),
            "capture": self.capture.to_json(),
            "subscriptions": [subscription.to_json() for subscription in self.subscriptions],
        }


def read_status(config: Config, *, patience_s: float = 0.0) -> Status:
    """Read the status from server and spool; never raises for the state of either.

    Args:
        config: which server and spool.
        patience_s: how long a capture that streams may need to get to where the server is now.
            Only then is it known that nothing of ours waits: the rest may be WAL of others.
    """
    source = _read_source(config.source)
    capture = _received(config, source.flush_lsn, patience_s)
    try:
        if not Spool.exists(config.spool.path):
            return Status(source, SpoolStatus(), _unstarted(config), capture)
        reader = SpoolReader(config.spool.path)
        records = reader.spool.subscriptions()
        configured = {each.name: each.enabled for each in config.subscriptions}
        spool = read_spool(reader, find_holds(records, configured, reader.spool.released()))
        lags = _Lags(source, spool, reader, capture.server_end)
        subscriptions = _subscriptions(config, records, lags)
    except PgsluiceError as error:
        return Status(source, SpoolStatus(error=str(error)), _unstarted(config), capture)
    return Status(source, spool, subscriptions, capture)


def _received(config: Config, flushed: Lsn | None, patience_s: float) -> CaptureStatus:
    """What capture says, once it is where the server was, or after so many seconds."""
    deadline = time.monotonic() + patience_s
    while True:
        capture = CaptureStatus.read(config)
        is_there = flushed is None or capture.server_end is None or capture.server_end >= flushed
        if is_there or time.monotonic() >= deadline:
            return capture
        time.sleep(_POLL_S)


def _read_source(source: SourceConfig) -> SourceStatus:
    timeout_s = min(source.connect_timeout_s, _TIMEOUT_S)
    try:
        with (
            connect_sql(source.dsn, timeout_s=timeout_s, application="status") as connection,
            source_errors("reading the slot"),
        ):
            slot = slot_info(connection, source.slot)
            return SourceStatus(source.slot, slot, flush_lsn(connection))
    except PgsluiceError as error:
        return SourceStatus(source.slot, error=error.what)


class _Lags:
    """The lag of a position behind the server, in bytes and seconds."""

    def __init__(
        self,
        source: SourceStatus,
        spool: SpoolStatus,
        reader: SpoolReader,
        server_end: Lsn | None,
    ) -> None:
        self.source = source
        self.spool = spool
        self.reader = reader
        self.server_end = server_end

    def in_bytes(self, position: Lsn) -> int | None:
        """The server's flush LSN minus the position, or minus the frontier if all is applied.

        While capture streams, it knows up to where the server has sent everything of ours. WAL
        of other databases before that is not our lag.
        """
        flushed, received = self.source.flush_lsn, self.spool.position
        if flushed is None:
            return None
        ours = max(received - position, 0) if received and self._has_unapplied(position) else 0
        if self.server_end is not None:
            return ours + max(flushed - max(self.server_end, self.spool.frontier or Lsn(0)), 0)
        reached = position if ours else max(position, self.spool.frontier or Lsn(0))
        return max(flushed - reached, 0)

    def in_seconds(self, position: Lsn) -> float | None:
        """The age of the oldest received transaction that is not applied; 0 if there is none.

        WAL beyond the frontier need not be ours (a checkpoint, another database): only
        ``lag_bytes`` counts it.
        """
        if self._has_unapplied(position):
            for segment in self.reader.all_segments():
                if segment.end > position:
                    return max(time.time() - first_commit_s(segment), 0.0)
        return 0.0

    def _has_unapplied(self, position: Lsn) -> bool:
        return self.spool.position is not None and position < self.spool.position


def _subscriptions(
    config: Config, records: list[SubscriptionRecord], lags: _Lags
) -> tuple[SubscriptionStatus, ...]:
    """The configured subscriptions in their order, then others that the spool knows."""
    known = {record.name: record for record in records}
    subscriptions = []
    for configured, subscription in zip(_unstarted(config), config.subscriptions, strict=True):
        record = known.pop(configured.name, None)
        if record is None:
            subscriptions.append(configured)
        else:
            started = _started(record, lags, configured)
            subscriptions.append(replace(started, advice=_advice(subscription.sink, record)))
    return (*subscriptions, *(_started(record, lags, None) for record in known.values()))


def _unstarted(config: Config) -> tuple[SubscriptionStatus, ...]:
    """The configured subscriptions as they are before their first start."""
    return tuple(
        SubscriptionStatus(
            name=subscription.name,
            mode=subscription.mode,
            sink=subscription.sink.target,
            position=None,
            lag_bytes=None,
            lag_s=None,
            tables=(),
            is_enabled=subscription.enabled,
            is_configured=True,
        )
        for subscription in config.subscriptions
    )


def _advice(sink: SinkConfig, record: SubscriptionRecord) -> dict[str, str]:
    advice = {
        table.title: sink.advice(table.namespace, table.name, table.merge_s)
        for table in record.tables.values()
        if table.is_active
    }
    return {title: text for title, text in advice.items() if text is not None}


def _started(
    record: SubscriptionRecord, lags: _Lags, configured: SubscriptionStatus | None
) -> SubscriptionStatus:
    tables = sorted(record.tables.values(), key=lambda table: (table.namespace, table.name))
    return SubscriptionStatus(
        name=record.name,
        mode=record.mode,
        sink=record.sink if configured is None else configured.sink,
        position=record.position,
        lag_bytes=lags.in_bytes(record.position),
        lag_s=lags.in_seconds(record.position),
        tables=tuple(tables),
        is_enabled=configured is None or configured.is_enabled,
        is_configured=configured is not None,
        former=record.former,
        copies=read_copies(lags.reader, record),
    )


def _table_json(table: TableRecord) -> dict[str, Any]:
    return {
        "schema": table.namespace,
        "table": table.name,
        "applied_through": _text(table.applied_through),
        "rows": table.rows,
        "rows_skipped": table.rows_skipped,
        "error": table.error,
        "sent": table.is_published,
        "incomplete": list(table.incomplete),
        "target": table.target,
        "merge_s": table.merge_s,
        "deferred_until": table.next_due if table.deferred else None,
        "to_verify": table.to_verify or None,
        "copy_reason": table.copy_reason or None,
    }


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
