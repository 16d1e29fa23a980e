"""The status of the slot, the spool, and each subscription and table.

It is read from the server and from the spool's files, never from a running process. So it works
during and after ``run``, and while the server is down (the server's fields are then null). The
keys of :meth:`Status.to_json` must not change: other programs read them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgsluice.capture.health import read_health
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.monitor.lags import MOST_SEGMENTS, Lags, TableLag
from pgsluice.monitor.source_status import CaptureStatus, SourceStatus, ask_source, known_source
from pgsluice.monitor.spool_status import CopiesStatus, SpoolStatus, read_copies, read_spool
from pgsluice.monitor.wording import lsn_text, state_words
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
from pgsluice.spool.active_runs import ActiveRun
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.notes import Verified, read_catalog_problems, read_verified
from pgsluice.spool.segments.retention import find_holds
from pgsluice.stores.contract import StoreError
from pgsluice.subscription.batches.lacking import LackingChanges

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """One subscription.

    Attributes:
        position: the subscription's position; None before its first start.
        lag_bytes: None if the server's position is unknown.
        lag_s: the age of the oldest change that a target lacks; 0: everything that was received is
            applied.
        is_running: a run is active; None: unknown, as for a stream of Spark, and for a run on
            another machine until it has missed its beats.
        former: targets that are no longer updated, because a renamed table left them.
        advice: by ``schema.table``: the gain of another setting of the sink.
        unregistered: by ``schema.table``: why the table is not in the catalog as configured.
        lags: how far each table is behind, by its target's name.
        behind: the tables that lack changes from before the subscription's position.
        verified: the last verification of each table since its copy.
    """

    name: str
    mode: str
    sink: str
    position: Lsn | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    tables: tuple[TableRecord, ...] = ()
    is_enabled: bool = True
    is_configured: bool = True
    former: Mapping[TargetName, FormerTarget] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)
    copies: CopiesStatus = field(default_factory=CopiesStatus)
    lags: Mapping[TargetName, TableLag] = field(default_factory=dict)
    behind: frozenset[TargetName] = frozenset()
    is_running: bool | None = None
    verified: Mapping[TargetName, Verified] = field(default_factory=dict)

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
        """How far a table is behind the source, in bytes of WAL and in seconds."""
        return self.lags.get(table.target_name, TableLag())

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "mode": self.mode,
            "sink": self.sink,
            "position": lsn_text(self.position),
            "lag_bytes": self.lag_bytes,
            "lag_s": self.lag_s,
            "tables": [
                {
                    **_table_json(table),
                    **self.lag_of(table).to_json(),
                    "state": self.state_of(table, table.state),
                    "state_words": state_words(
                        self.state_of(table, table.shown_state), table.incomplete
                    ),
                    "advice": self.advice.get(table.title),
                    "catalog_problem": self.unregistered.get(table.title),
                    "copy": None if copy is None else copy.to_json(),
                    "verified_through": lsn_text(None if verified is None else verified.position),
                    "verified_at": None if verified is None else verified.at,
                }
                for table in self.tables
                for copy in [self.copies.tables.get(table.target_name)]
                for verified in [self.verified.get(table.target_name)]
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
    """Everything that ``pgsluice status`` shows, read at a time in seconds since 1970."""

    source: SourceStatus
    spool: SpoolStatus
    subscriptions: tuple[SubscriptionStatus, ...]
    capture: CaptureStatus = field(default_factory=CaptureStatus)
    read_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The object that ``pgsluice status --json`` prints."""
        return {
            "read_at": self.read_at,
            "source": self.source.to_json(),
            "spool": self.spool.to_json(),
            "capture": self.capture.to_json(),
            "subscriptions": [subscription.to_json() for subscription in self.subscriptions],
        }


class StatusReader:
    """Reads the status repeatedly; of the spool it reads only what is new.

    Without ``asks_server``, the slot is as capture last read it, and no connection is made.
    """

    def __init__(self, config: Config, *, asks_server: bool = True) -> None:
        self._config = config
        self._asks_server = asks_server
        self._reader: SpoolReader | None = None
        self._lacking: dict[str, LackingChanges] = {}

    def read(self, patience_s: float = 0.0) -> Status:
        """The current status; never raises because of the state of server or spool.

        Args:
            patience_s: how long to wait for an active capture to reach the server's current
                position. Only then is it known that no change waits: the remaining WAL may not
                concern us.
        """
        config, read_at = self._config, time.time()
        if self._asks_server:
            source = ask_source(config.source)
        else:
            source = known_source(config.source, read_health(config.spool.folder))
        capture = _received(config, source.flush_lsn, patience_s)
        is_active = source.slot is not None and source.slot.active_pid is not None
        if config.spool.place.is_remote and not capture.is_running and is_active:
            capture = CaptureStatus(is_elsewhere=True)
        spool, subscriptions = SpoolStatus(), tuple(map(_unstarted, config.subscriptions))
        try:
            if self._reader is None and Spool.exists(config.spool.place):
                self._reader = SpoolReader(config.spool.place)
            if (reader := self._reader) is not None:
                records = reader.spool.subscriptions()
                configured = {each.name: each.enabled for each in config.subscriptions}
                spool = read_spool(reader, find_holds(records, configured, reader.spool.released()))
                lags = Lags(source.flush_lsn, spool, self._lacking_of, capture.server_end)
                subscriptions = tuple(_subscriptions(config, records, reader, lags))
        except PgsluiceError as error:
            self._reader = None
            spool = SpoolStatus(error=str(error))
        return Status(source, spool, subscriptions, capture, read_at)

    def _lacking_of(self, name: str) -> LackingChanges:
        """What finds the changes that a subscription's targets lack."""
        assert self._reader is not None
        known = self._lacking.get(name)
        if known is None or known.reader is not self._reader:
            known = self._lacking[name] = LackingChanges(self._reader, MOST_SEGMENTS)
        return known


def read_status(config: Config, *, patience_s: float = 0.0, asks_server: bool = True) -> Status:
    """Read the status once; the arguments are those of :class:`StatusReader`."""
    return StatusReader(config, asks_server=asks_server).read(patience_s)


def _received(config: Config, flushed: Lsn | None, patience_s: float) -> CaptureStatus:
    """Capture's state, once capture has reached the server's position, or after the timeout."""
    deadline = time.monotonic() + patience_s
    while True:
        capture = CaptureStatus.of(read_health(config.spool.folder))
        is_there = flushed is None or capture.server_end is None or capture.server_end >= flushed
        if is_there or time.monotonic() >= deadline:
            return capture
        time.sleep(_POLL_S)


def _subscriptions(
    config: Config, records: list[SubscriptionRecord], reader: SpoolReader, lags: Lags
) -> Iterator[SubscriptionStatus]:
    """The configured subscriptions in their order, then the others in the spool."""
    known = {record.name: record for record in records}
    for each in config.subscriptions:
        record = known.pop(each.name, None)
        yield _unstarted(each) if record is None else _started(record, reader, lags, each)
    yield from (_started(record, reader, lags, None) for record in known.values())


def _unstarted(subscription: SubscriptionConfig) -> SubscriptionStatus:
    """A configured subscription before its first start."""
    name, mode, sink = subscription.name, subscription.mode, subscription.sink.target
    return SubscriptionStatus(name, mode, sink, is_enabled=subscription.enabled)


def _advice(subscription: SubscriptionConfig, record: SubscriptionRecord) -> dict[str, str]:
    sink, names = subscription.sink, subscription.names
    advice = {
        title: sink.advice(*names.table(table.namespace, table.name), table.merge_s, title)
        for table in record.tables.values()
        if table.is_active
        for title in [table.title]
    }
    return {title: text for title, text in advice.items() if text is not None}


def _unregistered(
    subscription: SubscriptionConfig, record: SubscriptionRecord, spool: Path
) -> dict[str, str]:
    """The catalog problems that the last run found, for tables that are to be registered."""
    problems = read_catalog_problems(spool, record.name)
    if not problems:
        return {}
    sink, names = subscription.sink, subscription.names
    return {
        table.title: problems[table.title]
        for table in record.tables.values()
        if table.title in problems
        and sink.catalog_table(*names.table(table.namespace, table.name)) is not None
    }


def _started(
    record: SubscriptionRecord,
    reader: SpoolReader,
    lags: Lags,
    configured: SubscriptionConfig | None,
) -> SubscriptionStatus:
    tables = sorted(record.tables.values(), key=lambda table: (table.namespace, table.name))
    is_enabled = configured is None or configured.enabled
    is_running = None
    if record.owner is Owner.CONFIG:
        is_running = subscription_lock(reader.spool.path, record.name).is_held()
        if not is_running and (run := ActiveRun(reader.spool.place, record.name)).is_elsewhere():
            is_running = None
            with suppress(StoreError):  # such as for a role that may only read
                is_running = False if run.was_killed_elsewhere() else None
    folder, stopped = reader.spool.place.folder, "no run is active" if is_running is False else ""
    lag = lags.of(record, stopped if is_enabled else "the subscription is disabled")
    return SubscriptionStatus(
        name=record.name,
        mode=record.mode,
        sink=record.sink if configured is None else configured.sink.target,
        position=record.position,
        lag_bytes=lag.bytes,
        lag_s=lag.seconds,
        tables=tuple(tables),
        is_enabled=is_enabled,
        is_configured=configured is not None,
        is_running=is_running,
        former=record.former,
        advice={} if configured is None else _advice(configured, record),
        unregistered={} if configured is None else _unregistered(configured, record, folder),
        copies=read_copies(reader, record),
        lags={record.tables[oid].target_name: each for oid, each in lag.tables.items()},
        behind=frozenset(record.tables[oid].target_name for oid in lag.behind),
        verified={
            record.tables[oid].target_name: each
            for oid, each in read_verified(folder, record.name, record.tables).items()
        },
    )


def _table_json(table: TableRecord) -> dict[str, Any]:
    return {
        "schema": table.namespace,
        "table": table.name,
        "applied_through": lsn_text(table.applied_through),
        "rows": table.rows,
        "rows_skipped": table.rows_skipped,
        "rejects": table.rejects,
        "error": table.error,
        "sent": table.is_published,
        "incomplete": list(table.incomplete),
        "target": table.target,
        "merge_s": table.merge_s,
        "deferred_until": table.pending.due,
        "to_verify": table.pending.verification or None,
        "copy_reason": table.copied.reason or None,
    }
