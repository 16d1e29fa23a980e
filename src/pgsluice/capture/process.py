"""All of capture: from one slot into one spool, on one connection after another.

Capture ends with errors that waiting cannot solve: a gap, a lost slot, another system, an
unwritable spool, a violation of the protocol. Before the first START_REPLICATION, any other refusal
ends it, too. After that, it reconnects after all other errors, with growing pauses and no limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pgsluice.capture.receiving.store import Store
from pgsluice.capture.reporting import CaptureReporter
from pgsluice.capture.source.slot import EARLIER_ENDS_S, STALE_WALSENDER_TIMEOUT_S, prepare_source
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
)
from pgsluice.events import CapturePhase, MetricsEvent
from pgsluice.spool import Spool, SpoolWriter
from pgsluice.spool.segments.retention import Retention, RetentionPolicy
from pgsluice.system.threads import Backoff

_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_FINAL = (SlotLost, Gap, ForeignSource)
_OUTCOMES: dict[type[PgsluiceError], str] = {
    SlotInUse: "slot_in_use",
    PublicationMissing: "publication_missing",
    SourceUnreachable: "unreachable",
}
"""How a connection ended, for metrics; else the server refused it."""


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
        config: source, spool, and the subscriptions that the spool keeps changes for.
        once: end when the received-through LSN has reached the flush LSN of the start.
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
        prepare_source(config, export_snapshot=False, is_stopping=ended.is_set).close()
    except PgsluiceError:
        if ended.is_set():
            return
        raise
    spool = Spool.open(config.spool.path)
    policy = RetentionPolicy(
        configured={each.name: each.enabled for each in config.subscriptions},
        retention_s=_retention_s(config),
        max_bytes=config.spool.max_bytes,
    )
    with SpoolWriter(spool, EARLIER_ENDS_S) as writer:
        reporter = CaptureReporter(config, writer, report)
        try:
            with Store(writer, Retention(writer, policy, reporter.warn)) as store:
                stream = SlotStream(config, spool, store, reporter, ended, once=once)
                _keep_streaming(stream, reporter, ended, once=once)
        except PgsluiceError as error:
            reporter.report(CapturePhase.STOPPED, error.what, error)
            raise
        reporter.report(CapturePhase.STOPPED)


def _retention_s(config: Config) -> float:
    """How long segments are kept after all subscriptions have applied them, in seconds."""
    confirmed = (3 * each.sink.confirms_after_s for each in config.subscriptions)
    return max([config.spool.retention, *confirmed])


def _keep_streaming(
    stream: SlotStream, reporter: CaptureReporter, stop: threading.Event, *, once: bool
) -> None:
    """Stream on one connection after another, until done or until waiting cannot help.

    The pauses between connections grow while nothing is received. A connection that received
    something resets them, so even a server that closes each connection after one transaction makes
    progress.
    """
    backoff = Backoff(_BACKOFF_S)
    in_use_since: float | None = None
    while not stream.is_done:
        began, durable = time.monotonic(), stream.durable
        try:
            stream.run()
            backoff.succeeded()
            in_use_since = None
            reporter.count_connection("ended")
            continue
        except SlotInUse as error:
            in_use_since = began if in_use_since is None else in_use_since
            is_foreign = time.monotonic() - in_use_since > STALE_WALSENDER_TIMEOUT_S
            # Where the server did not see that our last connection broke, it keeps the slot longer.
            if is_foreign and not stream.has_started:
                raise
            reason: PgsluiceError = error
        except _FINAL:
            raise
        except PublicationMissing as error:
            if once:
                raise
            reason, in_use_since = error, None
        except (SourceUnreachable, SourceRefused) as error:
            if not stream.has_started and not stop.is_set():
                raise
            reason, in_use_since = error, None
        if stream.durable > durable or time.monotonic() - began > backoff.longest_s:
            backoff.succeeded()
        reporter.count_connection(_OUTCOMES.get(type(reason), "refused"))
        # Waiting may not help here: the server says only what is missing.
        hint = reason.hint if isinstance(reason, PublicationMissing) else None
        message = f"{reason.what}; {hint}" if hint else reason.what
        reporter.report(CapturePhase.RECONNECTING, message)
        stop.wait(backoff.failed())
