"""The status of the slot, the spool, and each subscription and table.

It is read from the server and from the spool's files, never from a running process. So it works
during and after ``run``, and while the server is down (the server's fields are then null). The
keys of :meth:`Status.to_json` must not change: other programs read them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pgsluice.capture.health import error_of, read_health
from pgsluice.catalog import SlotInfo, flush_lsn, slot_info
from pgsluice.catalog.publications.managed import statements_for_others
from pgsluice.config import Config, SinkConfig, SourceConfig
from pgsluice.errors import PgsluiceError, SourceRefused
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.monitor.copies_status import CopiesStatus, read_copies
from pgsluice.monitor.lags import Lags, TableLag, utc
from pgsluice.monitor.spool_status import SpoolStatus, read_spool
from pgsluice.replication import connect_sql, source_errors
from pgsluice.spool import (
    FormerTarget,
    Owner,
    Spool,
    SpoolReader,
    SubscriptionRecord,
    TableRecord,
    TableState,
    TargetName,
)
from pgsluice.spool.catalog_problems import read_catalog_problems
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.segments.retention import find_holds

_TIMEOUT_S = 5.0
_POLL_S = 0.1
_SILENT_S = 60.0
"""The age, in seconds, at which capture's state is too old: it writes its state each second, and
less often while it connects."""
_SILENT = (
    "process {} has reported nothing since {}: it is stopped, or hangs\n"
    "  → kill it; an active run restarts it"
)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The server's side. If it did not answer, ``error`` says why and the other fields are None.

    Attributes:
        flush_lsn: the LSN up to which the server's WAL is durable.
        slot: None also if the slot does not exist.
        left: statements for other roles that new tables need in order to be published and copied.
    """

    slot_name: str
    slot: SlotInfo | None = None
    flush_lsn: Lsn | None = None
    error: str | None = None
    left: tuple[str, ...] = ()

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
            "statements_needed": list(self.left),
        }


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """The last state that capture reported.

    Attributes:
        is_running: its process exists on this machine.
        phase: what it is doing, or how it ended.
        server_end: the LSN up to which the server has sent everything; None if it does not stream.
        message: its problem; None if there is none.
        times: how many times in a row the problem occurred.
        reported_at: when it last reported, in seconds since 1970; None: never.
    """

    is_running: bool = False
    phase: str | None = None
    server_end: Lsn | None = None
    message: str | None = None
    times: int = 1
    reported_at: float | None = None

    @classmethod
    def read(cls, config: Config) -> CaptureStatus:
        """Read capture's file in the spool; empty without one."""
        health = read_health(config.spool.path)
        if health is None:
            return cls()
        is_running = health.is_alive() and health.phase is not CapturePhase.STOPPED
        is_silent = is_running and time.time() - health.written_at > _SILENT_S
        streams = is_running and health.phase is CapturePhase.STREAMING and not is_silent
        error = error_of(health.error) if health.error else None
        message = _SILENT.format(health.pid, utc(health.written_at)) if is_silent else None
        return cls(
            is_running,
            str(health.phase) if is_running or error else None,
            Lsn.parse(health.server_end) if streams else None,
            str(error) if error is not None else message or health.message,
            health.times,
            health.written_at,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "running": self.is_running,
            "phase": self.phase,
            "message": self.message,
            "times": self.times,
            "reported_at": self.reported_at,
        }


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """One subscription.

    Attributes:
        position: the subscription's position; None before its first start.
        lag_bytes: None if the server's position is unknown.
        lag_s: the age of the oldest change that a target lacks; 0: everything that was received is
            applied.
        is_running: a run is active; None: unknown, as for a stream of Spark.
        former: targets that are no longer updated, because a renamed table left them.
        advice: by ``schema.table``: the gain of another setting of the sink.
        unregistered: by ``schema.table``: why the table is not in the catalog as configured.
        copies: the progress of the copies.
        lags: how far each table is behind, by its target's name.
        behind: the tables that lack changes from before the subscription's position.
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
    unregistered: Mapping[str, str] = field(default_factory=dict)
    copies: CopiesStatus = field(default_factory=CopiesStatus)
    lags: Mapping[TargetName, TableLag] = field(default_factory=dict)
    behind: frozenset[TargetName] = frozenset()
    is_running: bool | None = None

    def state_of(self, table: TableRecord, state: TableState) -> str:
        """A table's state in PostgreSQL's terms (pg_subscription_rel.srsubstate).

        A copied table (``f``) is ``s`` while its position is past the subscription's: it waits for
        the stream to reach it. A table that was ready (``r``) is ``f`` while it lacks changes from
        before the subscription's position.
        """
        if state is TableState.READY and table.target_name in self.behind:
            return str(TableState.COPIED)
        is_ahead = self.position is not None and table.applied_through > self.position
        return "s" if state is TableState.COPIED and is_ahead else str(state)

    def lag_of(self, table: TableRecord) -> TableLag:
        """How far a table is behind."""
        return self.lags.get(table.target_name, TableLag())

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
                    **self.lag_of(table).to_json(),
                    "state": self.state_of(table, table.state),
                    "advice": self.advice.get(table.title),
                    "catalog_problem": self.unregistered.get(table.title),
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
            "running": self.is_running,
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
        """The object that ``pgsluice status --json`` prints."""
        return {
            "source": self.source.to_json(),
            "spool": self.spool.to_json(),
            "capture": self.capture.to_json(),
            "subscriptions": [subscription.to_json() for subscription in self.subscriptions],
        }


def read_status(config: Config, *, patience_s: float = 0.0) -> Status:
    """Read the status from server and spool; never raises because of the state of either.

    Args:
        config: the configuration of server and spool.
        patience_s: how long to wait for an active capture to reach the server's current position.
            Only then is it known that no change waits: the remaining WAL may not concern us.
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
        lags = Lags(source.flush_lsn, spool, reader, capture.server_end)
        subscriptions = _subscriptions(config, records, reader, lags)
    except PgsluiceError as error:
        return Status(source, SpoolStatus(error=str(error)), _unstarted(config), capture)
    return Status(source, spool, subscriptions, capture)


def _received(config: Config, flushed: Lsn | None, patience_s: float) -> CaptureStatus:
    """Capture's state, once capture has reached the server's position, or after so many seconds."""
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
            left = tuple[str, ...]()
            if slot is not None:  # before the first run, `check` says what is missing
                with suppress(SourceRefused):  # the run says what is wrong with the publications
                    names = source.publications
                    left = statements_for_others(connection, names, names)
            return SourceStatus(source.slot, slot, flush_lsn(connection), left=left)
    except PgsluiceError as error:
        return SourceStatus(source.slot, error=error.what)


def _subscriptions(
    config: Config, records: list[SubscriptionRecord], reader: SpoolReader, lags: Lags
) -> tuple[SubscriptionStatus, ...]:
    """The configured subscriptions in their order, then the others in the spool."""
    known = {record.name: record for record in records}
    subscriptions = []
    for configured, subscription in zip(_unstarted(config), config.subscriptions, strict=True):
        record = known.pop(configured.name, None)
        if record is None:
            subscriptions.append(configured)
        else:
            sink = subscription.sink
            subscriptions.append(
                replace(
                    _started(record, reader, lags, configured),
                    advice=_advice(sink, record),
                    unregistered=_unregistered(sink, record, config.spool.path),
                )
            )
    return (*subscriptions, *(_started(record, reader, lags, None) for record in known.values()))


def _unstarted(config: Config) -> tuple[SubscriptionStatus, ...]:
    """The configured subscriptions before their first start."""
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


def _unregistered(sink: SinkConfig, record: SubscriptionRecord, spool: Path) -> dict[str, str]:
    """The catalog problems that the last run found, for tables that are to be registered."""
    problems = read_catalog_problems(spool, record.name)
    return {
        table.title: problems[table.title]
        for table in record.tables.values()
        if table.title in problems and sink.catalog_table(table.namespace, table.name) is not None
    }


def _started(
    record: SubscriptionRecord,
    reader: SpoolReader,
    lags: Lags,
    configured: SubscriptionStatus | None,
) -> SubscriptionStatus:
    tables = sorted(record.tables.values(), key=lambda table: (table.namespace, table.name))
    is_enabled = configured is None or configured.is_enabled
    is_running = None
    if record.owner is Owner.CONFIG:
        is_running = subscription_lock(reader.spool.path, record.name).is_held()
    lag = lags.of(record, _why_stopped(is_enabled=is_enabled, is_running=is_running))
    return SubscriptionStatus(
        name=record.name,
        mode=record.mode,
        sink=record.sink if configured is None else configured.sink,
        position=record.position,
        lag_bytes=lag.bytes,
        lag_s=lag.seconds,
        tables=tuple(tables),
        is_enabled=is_enabled,
        is_configured=configured is not None,
        is_running=is_running,
        former=record.former,
        copies=read_copies(reader, record),
        lags={record.tables[oid].target_name: each for oid, each in lag.tables.items()},
        behind=frozenset(record.tables[oid].target_name for oid in lag.behind),
    )


def _why_stopped(*, is_enabled: bool, is_running: bool | None) -> str:
    """Why no table of a subscription is applied now; empty: a run is active, or this is unknown."""
    if not is_enabled:
        return "the subscription is disabled"
    return "no run is active" if is_running is False else ""


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
        "deferred_until": table.pending.due,
        "to_verify": table.pending.verification or None,
        "copy_reason": table.copied.reason or None,
    }


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
