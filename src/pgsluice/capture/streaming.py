"""One connection of capture, from its checks to the end of its stream.

It updates the managed publications. It compares the server with the spool's identity and history,
and the slot with the spool's received-through LSN (frontier). Only then does replication start,
from the frontier. If the server may have been restored, an earlier connection compares what it
resends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from pgsluice.capture.receiving.facts import CatalogWatch, FactsSource
from pgsluice.capture.receiving.receiver import Receiver, ReceiverOptions
from pgsluice.capture.receiving.renewal import ConnectionRenewal
from pgsluice.capture.receiving.store import Store
from pgsluice.capture.reporting import CaptureReporter
from pgsluice.capture.source.comparison import ComparedStream, Comparison
from pgsluice.capture.source.slot import (
    check_identity,
    connect_with_retry,
    generated_columns,
    options_in_force,
    pgoutput_options,
)
from pgsluice.capture.source.state import (
    FIRST_TO_SKIP_MISSING,
    SourceState,
    check_is_standby,
    check_publications,
    read_source_state,
    refuse_older_state,
    refuse_slot,
)
from pgsluice.capture.source.timeline import History, Received, start_on
from pgsluice.catalog import Connection
from pgsluice.catalog.publications.managed import ensure_publications
from pgsluice.catalog.server import slot_info
from pgsluice.config import Config
from pgsluice.errors import Gap, SourceUnreachable
from pgsluice.events import CapturePhase
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection, SystemIdentity, connect_sql
from pgsluice.spool import Spool
from pgsluice.spool.segments.recent_commits import Request

logger = logging.getLogger(__name__)


class SlotStream:
    """Streams from the slot to the store, on one connection after another.

    Args:
        once: end at the server's flush LSN as it is at the first connection.

    Attributes:
        has_started: whether a START_REPLICATION ever succeeded; set it if one of an earlier stream
            did.
    """

    def __init__(
        self,
        config: Config,
        spool: Spool,
        store: Store,
        reporter: CaptureReporter,
        stop: threading.Event,
        *,
        once: bool,
    ) -> None:
        self._config = config
        self._spool = spool
        self._store = store
        self._reporter = reporter
        self._stop = stop
        self._once = once
        self._target: Lsn | None = None
        self._publications: tuple[str, ...] = ()
        self._decodable_from: dict[str, Lsn] = {}
        self._generated_columns = generated_columns(config)
        self._seen: tuple[str, Comparison | None] = "", None
        self._renewal = ConnectionRenewal(config.source.slot, lambda: self._store.durable)
        self.has_started = False

    @property
    def is_done(self) -> bool:
        """Whether it was asked to stop, or has reached its target."""
        return self._stop.is_set() or (
            self._target is not None and self._store.durable >= self._target
        )

    def _connect(self) -> ReplicationConnection:
        source = self._config.source
        connect = partial(
            ReplicationConnection.connect,
            source.conninfo,
            source.connect_timeout_s,
            silence_s=source.silence_s,
        )
        if self.has_started:
            return connect()
        return connect_with_retry(connect, source.connect_timeout_s, self._stop.is_set)

    def run(self) -> None:
        """One connection, from its checks to its end."""
        with self._connect() as connection:
            system = connection.identify_system()
            check_identity(self._spool.identity, system)
            self._follow_timeline(connection, system)
            requested = self._spool.identity.publications
            source = read_source_state(
                connection.server_dsn,
                self._config.source,
                requested,
                self._generated_columns,
                self._reporter.note_slot,
            )
            try:
                refuse_slot(
                    source.slot,
                    system.dbname,
                    self._store.durable,
                    two_phase=self._config.source.two_phase,
                    has_frontier=self._spool.has_frontier_file(),
                )
            except Gap:  # in a store, it may be another capture's, which has received the changes
                self._store.settled_writer().check_epoch()
                raise
            refuse_older_state(source, self._store.durable)
            check_publications(source.publications, requested, connection.server_version)
            self._reporter.lasting = source.publications.problem
            self._publications = source.publications.names
            for name in source.publications.names:
                self._decodable_from.setdefault(name, source.publications.position)
            if self._once and self._target is None:
                self._target = source.flush_lsn
                if self.is_done:
                    return
            comparison = self._comparison(source, connection.server_version)
            if comparison is not None:
                self._compare(connection, source, comparison)
                return
            publications, more_at = self._publications_to_request()
            options = pgoutput_options(self._config.source, publications, connection.server_version)
            connection.start_replication(
                self._config.source.slot,
                self._store.durable,
                options,
                is_stopping=self._stop.is_set,
            )
            self.has_started = True
            self._store.settled_writer().check_epoch()
            self._seen = source.started_at, None
            request = Request.of(publications, options_in_force(options))
            self._store.settled_writer().begin(request)
            self._record_options(publications, options)
            self._reporter.count_connection("started")
            self._reporter.report(CapturePhase.STREAMING)
            try:
                self._receive(connection, source, more_at, options)
            finally:
                self._store.settled_writer().forget_connection()
            # The next connection, perhaps of another process, asks for these publications.
            self._record_options(self._publications_to_request()[0], options)

    def _comparison(self, source: SourceState, server_version: int) -> Comparison | None:
        """The commits that the server has to resend, to prove that it is the spool's source; None
        if nothing has to be compared, or can be."""
        started_at, compared = self._seen
        if source.started_at != started_at:
            compared = None
        elif compared is None or compared.is_over:  # not restarted, so it was not restored
            return None
        remembered, frontier = self._store.settled_writer().remembered(), self._store.durable
        confirmed = source.slot.confirmed_flush_lsn or Lsn(0)
        if remembered is None or confirmed >= frontier:
            return None
        # Some servers cannot decode what follows with a publication that is gone.
        is_gone = not source.all_publications.issuperset(remembered.request.publications)
        if is_gone and server_version < FIRST_TO_SKIP_MISSING:
            return None
        start = max(confirmed, remembered.since, compared.matched if compared else Lsn(0))
        comparison = Comparison(remembered, start, frontier)
        return None if comparison.is_over else comparison

    def _compare(
        self, connection: ReplicationConnection, source: SourceState, comparison: Comparison
    ) -> None:
        """Compare what the server resends; another connection receives afterwards."""
        config = self._config.source
        request, version = comparison.request, connection.server_version
        # With these, the server sends the same commits as then, each transaction at its commit.
        options = replace(
            pgoutput_options(config, request.publications, version),
            messages=request.messages,
            origin="none" if request.origin == "none" else "any",
            streaming="off",
        )
        connection.start_replication(
            config.slot, comparison.start, options, is_stopping=self._stop.is_set
        )
        self.has_started = True
        self._seen = source.started_at, comparison
        stream = ComparedStream(
            connection,
            comparison,
            status_s=source.status_s,
            silence_s=config.silence_timeout_s,
        )
        stream.run(self._stop.is_set)
        with suppress(SourceUnreachable):  # the server may be sending a large transaction
            connection.finish()

    def _record_options(self, publications: tuple[str, ...], options: PgoutputOptions) -> None:
        """Record what applies from the received-through LSN on."""
        identity = self._spool.identity
        in_force = options_in_force(options)
        self._spool.replace_identity(replace(identity, publications=publications, options=in_force))

    def _receive(
        self,
        connection: ReplicationConnection,
        source: SourceState,
        more_at: Lsn | None,
        options: PgoutputOptions,
    ) -> None:
        config = self._config.source
        until = min((lsn for lsn in (self._target, more_at) if lsn), default=None)
        facts = FactsSource(
            connection.server_dsn,
            config.connect_timeout_s,
            config.silence_s,
            connection.application,
        )
        receiving = ReceiverOptions(
            segment_bytes=self._config.spool.segment_bytes,
            segment_s=self._config.spool.segment_ms / 1000,
            status_s=source.status_s,
            silence_s=config.silence_timeout_s,
            parallel=options.streaming == "parallel",
            until=until,
        )
        receiver = Receiver(connection, self._store, facts, receiving, self._stop, self._reporter)
        watch = CatalogWatch(
            connection.server_dsn,
            facts,
            config.catalog_poll_s,
            self._keep_publications,
            self._reporter.warn,
            self._read_slot,
        )
        self._renewal.begin(source.unnoticed)
        try:
            with watch, self._guarded(connection, source):
                receiver.run()
            connection.finish()
        finally:
            facts.close()

    @contextmanager
    def _guarded(self, connection: ReplicationConnection, source: SourceState) -> Iterator[None]:
        """While a standby streams, let nothing become durable that was sent after its promotion."""
        if not source.is_standby:
            yield
            return
        config = self._config.source
        with connect_sql(
            connection.server_dsn,
            timeout_s=config.connect_timeout_s,
            application="standby watch",
            silence_s=config.silence_s,
        ) as sql:
            self._store.guard = partial(check_is_standby, sql)
            try:
                yield
            finally:
                self._store.guard = None

    def _keep_publications(self, connection: Connection) -> bool:
        requested = self._spool.identity.publications
        report = ensure_publications(
            connection, self._config.source.publications, requested, self._generated_columns
        )
        self._reporter.lasting = report.problem
        return not report.left

    def _read_slot(self, connection: Connection) -> None:
        self._reporter.note_slot(slot_info(connection, self._config.source.slot))
        self._renewal.poll(connection)

    def _publications_to_request(self) -> tuple[tuple[str, ...], Lsn | None]:
        """The publications to request, and the LSN at which another one can be added.

        The server cannot decode WAL from before a publication was created. So a publication that is
        new to the spool is requested only when the received-through LSN is past its creation.
        """
        known = self._spool.identity.publications
        too_new = [
            name
            for name in self._publications
            if name not in known and self._decodable_from[name] > self._store.durable
        ]
        ready = tuple(name for name in self._publications if name not in too_new)
        # If all of them are too new, ask for the same ones as before.
        return ready or known, min((self._decodable_from[name] for name in too_new), default=None)

    def _follow_timeline(self, connection: ReplicationConnection, system: SystemIdentity) -> None:
        """Follow the server's timeline, if the spool's content is part of its history."""
        identity = self._spool.identity
        server = History(system.timeline, connection.timeline_history(system.timeline))
        known = History(identity.timeline, identity.history)
        last = self._store.settled_writer().last_received
        start = start_on(Received(known, last, self._store.durable), server)
        if server == known:
            return
        self._store.lower_frontier(start)
        failpoint("capture.frontier_lowered")
        self._spool.replace_identity(
            replace(identity, timeline=server.timeline, history=server.ends)
        )
        if server.timeline != known.timeline or known.is_known:
            # What the old primary answered says nothing about this one.
            self._target = None
            self._decodable_from.clear()
            # A state in the health file would be overwritten before anybody reads it.
            logger.warning(
                "the server is on timeline %s, promoted at %s: continuing from %s",
                server.timeline,
                server.end_of(known.timeline) or start,
                start,
            )
