"""All of capture: from one slot into one spool, on one connection after another.

Capture ends with errors that waiting cannot solve: a gap, a lost slot, another system, an
unwritable spool, a violation of the protocol. Before the first START_REPLICATION, any other refusal
ends it, too. After that, it reconnects after all other errors, with growing pauses and no limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pgsluice.capture.receiving.store import Store
from pgsluice.capture.reporting import CaptureReporter
from pgsluice.capture.source.first_start import prepare_source
from pgsluice.capture.source.slot import EARLIER_ENDS_S, STALE_WALSENDER_TIMEOUT_S, await_free_slot
from pgsluice.capture.streaming import SlotStream
from pgsluice.config import Config
from pgsluice.errors import (
    ForeignSource,
    Gap,
    PgsluiceError,
    PublicationMissing,
    SlotInUse,
    SlotLost,
    SourceRefused,
    SourceUnreachable,
    SpoolTaken,
)
from pgsluice.events import CapturePhase, MetricsEvent, RunStep
from pgsluice.spool import Spool, SpoolWriter
from pgsluice.spool.segments.retention import Retention
from pgsluice.stores.contract import StoreError
from pgsluice.system.threads import Backoff

_FINAL = (SlotLost, Gap, ForeignSource)
_PASSING = (StoreError, SpoolTaken, SlotInUse, SourceUnreachable)
"""Errors after which capture opens a spool in an object store again."""
_OUTCOMES: dict[type[PgsluiceError], str] = {
    SlotInUse: "slot_in_use",
    PublicationMissing: "publication_missing",
    SourceUnreachable: "unreachable",
}
"""How a connection ended, for metrics; else the server refused it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long capture waits, in seconds.

    Attributes:
        pauses_s: before the next connections, while nothing is received.
        stale_walsender_s: for a slot that a walsender of a killed capture may still hold.
    """

    pauses_s: Sequence[float] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    stale_walsender_s: float = STALE_WALSENDER_TIMEOUT_S


_WAITS = Waits()


def run_capture(
    config: Config,
    *,
    once: bool = False,
    report: Callable[[MetricsEvent], None] = lambda _: None,
    stop: threading.Event | None = None,
    waits: Waits = _WAITS,
) -> None:
    """Receive changes into the spool. Return when ``stop`` is set; with ``once``, also when
    everything up to the server's flush LSN at the start is received.

    Args:
        config: source, spool, and the subscriptions that the spool keeps changes for.
        report: receives events about once a second.
        stop: set to end cleanly: completely received transactions are durable and acknowledged.

    Raises:
        SourceUnreachable: no connection before the first START_REPLICATION.
        SourceRefused: the source is unsuitable, or not the one of the spool (Gap, SlotLost,
            SlotInUse, ForeignSource).
        SpoolBusy: another process writes to the spool.
        SpoolFull, SpoolError: the spool cannot be written.
        ProtocolError: the server sent an illegal or unknown message.
    """
    ended = stop or threading.Event()
    try:
        prepared = prepare_source(config, export_snapshot=False, is_stopping=ended.is_set)
        prepared.close()
        if prepared.created:
            report(RunStep(prepared.created, "capture"))
            report(RunStep(""))
    except PgsluiceError:
        if ended.is_set():
            return
        raise
    _Capture(config, once, report, ended, waits).run()


@dataclass(slots=True)
class _Capture:
    """Receives into the spool until it is stopped."""

    _config: Config
    _once: bool
    _report: Callable[[MetricsEvent], None]
    _stop: threading.Event
    _waits: Waits
    _reporter: CaptureReporter | None = None
    has_started: bool = False

    def run(self) -> None:
        """Open the spool, and receive until done.

        One in an object store is opened again whenever the store failed, or another capture has
        opened it. After an error of the store, an object that seemed to be lost may be there. So
        where the spool ends is only known once it is listed again.
        """
        backoff = Backoff(self._waits.pauses_s)
        while not (self._config.spool.place.is_remote and self._stop.is_set()):
            began = time.monotonic()
            try:
                self._receive()
                return
            except _PASSING as error:
                if self._reporter is None or not self._may_go_on(error):
                    raise
                if time.monotonic() - began > backoff.longest_s:
                    backoff.succeeded()
                self._reporter.report(CapturePhase.RECONNECTING, str(error))
                self._stop.wait(backoff.failed())

    def _receive(self) -> None:
        config = self._config
        spool, confirm = Spool.open(config.spool.place), partial(self._await_free_slot, 0.0)
        if spool.place.is_remote:  # before its epoch is raised, so that a capture is not disturbed
            self._await_free_slot(self._waits.stale_walsender_s)
        configured = {each.name: each.enabled for each in config.subscriptions}
        confirmed = (3 * each.sink.confirms_after_s for each in config.subscriptions)
        kept_s = max([config.spool.retention, *confirmed])
        with SpoolWriter(spool, EARLIER_ENDS_S, confirm) as writer:
            reporter = self._reporter = CaptureReporter(config, writer, self._report)
            try:
                retention = Retention(
                    writer, reporter.warn, configured, kept_s, config.spool.max_bytes
                )
                with Store(writer, retention) as store:
                    stream = SlotStream(config, spool, store, reporter, self._stop, once=self._once)
                    stream.has_started = self.has_started
                    try:
                        self._keep_streaming(stream, store, reporter)
                    finally:
                        self.has_started = stream.has_started
            except PgsluiceError as error:
                if not self._may_go_on(error):
                    reporter.report(CapturePhase.STOPPED, error.what, error)
                raise
            reporter.report(CapturePhase.STOPPED)

    def _keep_streaming(self, stream: SlotStream, store: Store, reporter: CaptureReporter) -> None:
        """Stream on one connection after another, until done or until waiting cannot help.

        The pauses between connections grow while nothing is received. A connection that received
        something resets them, so even a server that closes each connection after one transaction
        makes progress.
        """
        backoff = Backoff(self._waits.pauses_s)
        in_use_since: float | None = None
        while not stream.is_done:
            began, durable = time.monotonic(), store.durable
            try:
                stream.run()
                backoff.succeeded()
                in_use_since = None
                reporter.count_connection("ended")
                continue
            except SlotInUse as error:
                in_use_since = began if in_use_since is None else in_use_since
                is_foreign = time.monotonic() - in_use_since > self._waits.stale_walsender_s
                # A server that did not see that our last connection broke keeps the slot longer.
                if is_foreign and not stream.has_started:
                    raise
                reason: PgsluiceError = error
            except _FINAL:
                raise
            except PublicationMissing as error:
                if self._once:
                    raise
                reason, in_use_since = error, None
            except (SourceUnreachable, SourceRefused) as error:
                if not stream.has_started and not self._stop.is_set():
                    raise
                reason, in_use_since = error, None
            if store.durable > durable or time.monotonic() - began > backoff.longest_s:
                backoff.succeeded()
            reporter.count_connection(_OUTCOMES.get(type(reason), "refused"))
            # Waiting may not help here: the server says only what is missing.
            hint = reason.hint if isinstance(reason, PublicationMissing) else None
            message = f"{reason.what}; {hint}" if hint else reason.what
            reporter.report(CapturePhase.RECONNECTING, message)
            self._stop.wait(backoff.failed())

    def _may_go_on(self, error: PgsluiceError) -> bool:
        """Whether the spool is opened again after an error."""
        is_kept = self._config.spool.place.is_remote and self.has_started
        return is_kept and isinstance(error, _PASSING) and not self._stop.is_set()

    def _await_free_slot(self, patience_s: float) -> None:
        if self._config.spool.place.is_remote:
            await_free_slot(self._config, patience_s, self._stop.is_set)
