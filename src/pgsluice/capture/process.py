"""Capture as a whole: one slot into one spool, for as long as it takes.

At each connection: the publications are kept in step, the server is compared with the spool's
identity, the slot with the spool's frontier, and only then replication starts, from the
frontier. What cannot be mended by waiting ends it (a gap, a lost slot, another system, a
spool that cannot be written); before the first START_REPLICATION anything else does too.
After it, everything else is a reason to connect again, a little later each time, without end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from pgsluice.capture.facts import CatalogWatch, FactsSource
from pgsluice.capture.health import CaptureHealth, error_facts, write_health
from pgsluice.capture.receiver import Pace, Receiver
from pgsluice.capture.slot import (
    OUR_OWN_ENDS_S,
    check_identity,
    check_slot_kind,
    options_in_force,
    pgoutput_options,
    prepare_source,
    until_reachable,
)
from pgsluice.capture.standby import StandbyWatch
from pgsluice.capture.store import Store
from pgsluice.capture.timeline import (
    COPY_AGAIN,
    History,
    Received,
    check_slot_is_there,
    start_on,
)
from pgsluice.catalog import SlotInfo, ensure_publications, flush_lsn, server_info, slot_info
from pgsluice.config import Config
from pgsluice.errors import (
    ForeignSource,
    Gap,
    PgsluiceError,
    SlotInUse,
    SlotLost,
    SourceRefused,
    SourceUnreachable,
)
from pgsluice.events import CapturePhase, CaptureState, MetricsEvent
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.replication import (
    PgoutputOptions,
    ReplicationConnection,
    SystemIdentity,
    connect_sql,
    source_errors,
)
from pgsluice.spool import Spool, SpoolWriter
from pgsluice.spool.retention import Retention, RetentionPolicy

_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STATUS_S = 10.0
_FINAL = (SlotLost, Gap, ForeignSource)


def _ignore(_: MetricsEvent) -> None:
    return None


def run_capture(
    config: Config,
    *,
    once: bool = False,
    report: Callable[[MetricsEvent], None] = _ignore,
    stop: threading.Event | None = None,
) -> None:
    """Receive until ``stop`` is set; with ``once``, up to the server's position at the start.

    Args:
        config: source, spool, and the subscriptions that the spool is kept for.
        once: end by itself when the frontier has reached the flush LSN seen at the start.
        report: takes events about once a second.
        stop: ends it cleanly: what was received whole is durable and acknowledged.

    Raises:
        SourceUnreachable: no connection before the first START_REPLICATION.
        SourceRefused: the source is not fit, or not the spool's (Gap, SlotLost, SlotInUse,
            ForeignSource).
        SpoolBusy: another process writes to the spool.
        SpoolFull, SpoolError: the spool cannot be written.
        ProtocolError: the server sent what we do not know.
    """
    ended = stop or threading.Event()
    try:
        prepare_source(config, export_snapshot=False, is_stopping=ended.is_set).close()
    except PgsluiceError:
        if ended.is_set():
            return
        raise
    spool = Spool.open(config.spool.path)
    policy = RetentionPolicy(
        configured={one.name: one.enabled for one in config.subscriptions},
        retention_s=config.spool.retention,
        max_bytes=config.spool.max_bytes,
    )
    with SpoolWriter(spool) as writer:
        voice = _Voice(config, writer, report)
        try:
            with Store(writer, Retention(writer, policy, voice.warn)) as store:
                voice.store = store
                _Capture(config, spool, store, voice, ended, once=once).run()
        except PgsluiceError as error:
            voice.say(CapturePhase.STOPPED, error.what, error)
            raise
        voice.say(CapturePhase.STOPPED)


class _Voice:
    """Says how it goes: as events and in the health file."""

    def __init__(
        self, config: Config, writer: SpoolWriter, report: Callable[[MetricsEvent], None]
    ) -> None:
        self._path = config.spool.path
        self._writer = writer
        self._report = report
        self._health = CaptureHealth(os.getpid(), CapturePhase.STARTING, time.time(), time.time())
        self.store: Store | None = None
        self.receiver: Receiver | None = None

    def warn(self, sentence: str) -> None:
        """Something that does not stop the work."""
        self.say(self._health.phase, sentence)

    def say(
        self, phase: CapturePhase, message: str | None = None, error: PgsluiceError | None = None
    ) -> None:
        """Tell where it stands."""
        retained = self.store.retained if self.store else None
        position, frontier = self._writer.position, self._writer.frontier
        server_end = max(self.receiver.server_end if self.receiver else Lsn(0), frontier)
        size = retained.size_bytes if retained else None
        lowest = retained.lowest if retained else None
        self._health = replace(
            self._health,
            phase=phase,
            written_at=time.time(),
            position=str(position),
            frontier=str(frontier),
            server_end=str(server_end),
            spool_bytes=size,
            lowest_hold=None if lowest is None else str(lowest),
            message=message,
            error=error_facts(error) if error else None,
        )
        write_health(self._path, self._health)
        lag = server_end - frontier
        self._report(CaptureState(phase, position, frontier, lag, size, message))


@dataclass(frozen=True, slots=True)
class _Source:
    """What the server said before a stream."""

    slot: SlotInfo
    flush: Lsn
    is_standby: bool
    status_s: float


class _Capture:
    """The loop around connections."""

    def __init__(
        self,
        config: Config,
        spool: Spool,
        store: Store,
        voice: _Voice,
        stop: threading.Event,
        *,
        once: bool,
    ) -> None:
        self._config = config
        self._store = store
        self._voice = voice
        self._stop = stop
        self._once = once
        self._target: Lsn | None = None
        self._has_streamed = False
        self._names: tuple[str, ...] = ()
        self._joins: dict[str, Lsn] = {}
        self._spool = spool

    def run(self) -> None:
        failures = 0
        in_use_since: float | None = None
        while not self._is_done():
            began = time.monotonic()
            try:
                self._stream()
                failures, in_use_since = 0, None
                continue
            except SlotInUse as error:
                in_use_since = began if in_use_since is None else in_use_since
                is_anothers = time.monotonic() - in_use_since > OUR_OWN_ENDS_S
                # Where a connection broke unseen, the server keeps our old one for longer.
                if is_anothers and not self._has_streamed:
                    raise
                reason: PgsluiceError = error
            except _FINAL:
                raise
            except (SourceUnreachable, SourceRefused) as error:
                if not self._has_streamed:
                    raise
                reason, in_use_since = error, None
            if time.monotonic() - began > _BACKOFF_S[-1]:
                failures = 0
            self._voice.say(CapturePhase.RECONNECTING, reason.what)
            self._stop.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    def _is_done(self) -> bool:
        return self._stop.is_set() or (
            self._target is not None and self._store.durable >= self._target
        )

    def _connect(self) -> ReplicationConnection:
        source = self._config.source

        def connect() -> ReplicationConnection:
            return ReplicationConnection.connect(source.dsn, source.connect_timeout_s)

        if self._has_streamed:
            return connect()
        return until_reachable(connect, source.connect_timeout_s, self._stop.is_set)

    def _stream(self) -> None:
        """One connection, from its checks to its end."""
        with self._connect() as connection:
            system = connection.identify_system()
            check_identity(self._spool.identity, system)
            self._follow_timeline(connection, system)
            source = self._ask(connection.server_dsn)
            self._check_slot(source, system)
            if self._once and self._target is None:
                self._target = source.flush
                if self._is_done():
                    return
            publications, join_at = self._joined()
            options = pgoutput_options(self._config.source, publications, connection.server_version)
            connection.start_replication(self._config.source.slot, self._store.durable, options)
            self._has_streamed = True
            self._note(publications, options)
            self._voice.say(CapturePhase.STREAMING)
            try:
                self._receive(connection, source, join_at, options)
            finally:
                self._store.forget_connection()
            # What may join now does so with the next connection, also if that is another run's.
            self._note(self._joined()[0], options)

    def _note(self, publications: tuple[str, ...], options: PgoutputOptions) -> None:
        """What is asked for from the frontier on."""
        identity = self._spool.identity
        in_force = options_in_force(options)
        self._spool.replace_identity(replace(identity, publications=publications, options=in_force))

    def _receive(
        self,
        connection: ReplicationConnection,
        source: _Source,
        join_at: Lsn | None,
        options: PgoutputOptions,
    ) -> None:
        config = self._config.source
        until = min((lsn for lsn in (self._target, join_at) if lsn), default=None)
        facts = FactsSource(connection.server_dsn, config.connect_timeout_s)
        pace = Pace(
            segment_bytes=self._config.spool.segment_bytes,
            segment_s=self._config.spool.segment_ms / 1000,
            status_s=source.status_s,
        )
        receiver = Receiver(
            connection,
            self._store,
            facts,
            pace,
            parallel=options.streaming == "parallel",
            stop=self._stop,
            until=until,
            on_progress=self._on_progress,
        )
        self._voice.receiver = receiver
        watch = CatalogWatch(
            connection.server_dsn,
            facts,
            config.catalog_poll_s,
            self._keep_publications,
            self._voice.warn,
        )
        try:
            with watch, self._guarded(connection, source):
                receiver.run()
            connection.finish()
        finally:
            facts.close()

    @contextmanager
    def _guarded(self, connection: ReplicationConnection, source: _Source) -> Iterator[None]:
        """While a standby streams, nothing becomes durable that came after its promotion."""
        if not source.is_standby:
            yield
            return
        with StandbyWatch(connection.server_dsn, self._config.source.connect_timeout_s) as standby:
            self._store.guard = standby.check
            try:
                yield
            finally:
                self._store.guard = None

    def _on_progress(self) -> None:
        if not self._store.is_full:
            self._voice.say(CapturePhase.STREAMING)
            return
        message = "the spool is at its size limit; nothing more is acknowledged"
        retained = self._store.retained
        if retained is not None and retained.waiting_bytes:
            message += (
                f". {retained.waiting_bytes} bytes of it are transactions in progress, whose end "
                "cannot be read: raise spool.max_bytes if nothing else makes room"
            )
        self._voice.say(CapturePhase.WAITING, message)

    def _keep_publications(self, connection: psycopg.Connection[Any]) -> None:
        ensure_publications(connection, self._config.source.publications)

    def _ask(self, dsn: str) -> _Source:
        config = self._config.source
        with (
            connect_sql(dsn, timeout_s=config.connect_timeout_s) as sql,
            source_errors("reading the catalog"),
        ):
            server = server_info(sql)
            slot = check_slot_is_there(slot_info(sql, config.slot), config.slot, server)
            report = ensure_publications(sql, config.publications)
            flush = flush_lsn(sql)
            row = sql.execute(
                "SELECT setting::bigint FROM pg_catalog.pg_settings"
                " WHERE name = 'wal_sender_timeout'"
            ).fetchone()
        timeout_ms = row[0] if row else 0
        self._names = report.names
        for name in report.names:
            self._joins.setdefault(name, report.position)
        return _Source(
            slot=slot,
            flush=flush,
            is_standby=server.is_standby,
            status_s=min(_STATUS_S, timeout_ms / 4000) if timeout_ms else _STATUS_S,
        )

    def _joined(self) -> tuple[tuple[str, ...], Lsn | None]:
        """The publications to ask for: one that is new to the spool only when the frontier is
        past its making, since before that the server cannot decode it. And when that will be.
        """
        known = self._spool.identity.publications
        waiting = [
            name
            for name in self._names
            if name not in known and self._joins[name] > self._store.durable
        ]
        joined = tuple(name for name in self._names if name not in waiting)
        # Until then those go on that were asked for before, if nothing else is left to ask for.
        return joined or known, min((self._joins[name] for name in waiting), default=None)

    def _follow_timeline(self, connection: ReplicationConnection, system: SystemIdentity) -> None:
        """Go on with the server's timeline, if what the spool has is part of its history."""
        identity = self._spool.identity
        server = History.of_server(system.timeline, connection.timeline_history(system.timeline))
        known = History(identity.timeline, identity.history)
        received = Received(known, self._store.last_received, self._store.durable)
        start = start_on(received, server)
        if server == known:
            return
        self._store.lower_frontier(start)
        failpoint("capture.frontier_lowered")
        self._spool.replace_identity(
            replace(identity, timeline=server.timeline, history=server.ends)
        )
        if server.timeline != known.timeline or known.is_known:
            # What was asked of the old primary says nothing of this one.
            self._target = None
            self._joins.clear()
            self._voice.warn(
                f"the server is on timeline {server.timeline}, promoted at "
                f"{server.end_of(known.timeline) or start}: going on from {start}"
            )

    def _check_slot(self, source: _Source, system: SystemIdentity) -> None:
        """Does the slot have what follows the frontier?"""
        slot, frontier = source.slot, self._store.durable
        check_slot_kind(slot, system.dbname, two_phase=self._config.source.two_phase)
        if slot.is_lost:
            why = slot.invalidation_reason or "its WAL was removed"
            raise SlotLost(
                f"slot {slot.name!r} is lost: {why}",
                hint=f"raise max_slot_wal_keep_size, then {COPY_AGAIN}",
            )
        if slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > frontier:
            raise Gap(
                f"slot {slot.name!r} stands at {slot.confirmed_flush_lsn}, past the spool's "
                f"frontier {frontier}: somebody else read from it",
                hint=f"the changes between are gone: {COPY_AGAIN}",
                lsn=frontier,
            )
        if frontier > source.flush:
            what = f"the server's WAL ends at {source.flush}, before the spool's {frontier}"
            if source.is_standby:
                raise SourceUnreachable(f"{what}: the standby is behind")
            raise ForeignSource(f"{what}: it was restored from an older state", hint=COPY_AGAIN)
