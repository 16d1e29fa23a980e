"""Reports the state of capture: as events, and in the health file."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from pgsluice.capture.health import CaptureCounts, CaptureHealth, error_facts, write_health
from pgsluice.capture.receiving.receiver import ReceiverReports
from pgsluice.capture.receiving.unfinished import Unfinished
from pgsluice.catalog import SlotInfo, TransactionStatus
from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.events import CapturePhase, CaptureState, MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolWriter
from pgsluice.spool.segments.retention import RetentionState, limit_words
from pgsluice.sql import quote_literal

_HELD_S = 1.0
"""How long a commit may wait for a standby before a warning, in seconds."""
_HELD = (
    "the server's catalog does not show the next transaction yet: its commit waits for a"
    " synchronous standby (synchronous_standby_names)"
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the last connection ended, and how many in a row ended for this reason without receiving
    more."""

    message: str | None = None
    frontier: Lsn = Lsn(0)  # noqa: RUF009 - an immutable value
    times: int = 0

    def again(self, message: str | None, frontier: Lsn) -> Trouble:
        """The new value after another connection has ended."""
        is_same = (message, frontier) == (self.message, self.frontier)
        return Trouble(message, frontier, self.times + 1 if is_same else 1)


class CaptureReporter(ReceiverReports):
    """Reports the state of one capture.

    Attributes:
        lasting: a message that the user has to see while it applies; thread-safe.
    """

    def __init__(
        self, config: Config, writer: SpoolWriter, send: Callable[[MetricsEvent], None]
    ) -> None:
        self._path = config.spool.folder
        self._full, self._room = limit_words(config.spool.max_bytes)
        self._writer = writer
        self._send = send
        self._health = CaptureHealth(os.getpid(), CapturePhase.STARTING, time.time())
        self._server_end = self._acknowledged = Lsn(0)
        self._stream_bytes = 0
        self._connections: Counter[str] = Counter()
        self._slot: SlotInfo | None = None
        self._slot_read_at: float | None = None
        self._trouble = Trouble()
        self.lasting: str | None = None
        self._held: str | None = None

    def warn(self, sentence: str) -> None:
        """Report a problem that does not stop the work."""
        self.report(self._health.phase, sentence)

    def report_held(self, seconds: float) -> None:
        self._held = _HELD if seconds >= _HELD_S else None

    def count_received(self, size_bytes: int) -> None:
        self._stream_bytes += size_bytes

    def count_connection(self, outcome: str) -> None:
        """Count a connection that began to stream, or one that ended.

        Args:
            outcome: one of a few words.
        """
        self._connections[outcome] += 1

    def note_slot(self, slot: SlotInfo | None) -> None:
        """Take the slot as the catalog has it now; from any thread."""
        self._slot, self._slot_read_at = slot, time.time()

    def report_progress(
        self,
        server_end: Lsn,
        acknowledged: Lsn,
        retained: RetentionState | None,
        largest: Unfinished | None = None,
    ) -> None:
        self._server_end, self._acknowledged = server_end, acknowledged
        if retained is not None:
            self._health = replace(self._health, spool_bytes=retained.size_bytes)
        if retained is None or not retained.is_full:
            self.report(CapturePhase.STREAMING, None if retained is None else retained.problem)
            return
        message = f"{self._full}; nothing more is acknowledged"
        if retained.waiting_bytes:
            message += (
                f". {retained.waiting_bytes / 2**20:.1f} MiB of it are transactions whose end was "
                "not received"
            )
            if largest is not None:
                message += f". {self._about(largest)}"
        if retained.problem:
            message += f". {retained.problem}"
        self.report(CapturePhase.WAITING, message)

    def _about(self, largest: Unfinished) -> str:
        """A description of a transaction, and how to make room."""
        transaction = largest.transaction
        xid, mebibytes = transaction.xid, transaction.size_bytes / 2**20
        name = f"{mebibytes:.1f} MiB are transaction {xid}"
        more = self._room
        match largest.status:
            case TransactionStatus.IN_PROGRESS if transaction.gid is not None:
                gid = quote_literal(transaction.gid)
                return f"{name}, which is prepared: ROLLBACK PREPARED {gid} frees it, or {more}"
            case TransactionStatus.IN_PROGRESS:
                return (
                    f"{name}, which is open (its session has this backend_xid in pg_stat_activity):"
                    f" its rollback frees it; if it is to commit, {more}"
                )
            case TransactionStatus.ABORTED:
                return f"{name}, which was rolled back: it is dropped now"
            case TransactionStatus.COMMITTED:
                return f"{name}, which has committed and needs more room: {more}"
            case None:
                return f"{name}, whose outcome the server no longer knows: {more}"

    def report(
        self, phase: CapturePhase, message: str | None = None, error: PgsluiceError | None = None
    ) -> None:
        """Report the current state of capture.

        Args:
            message: the problem, if there is one.
        """
        message = message or self._held or self.lasting
        position, frontier = self._writer.position, self._writer.frontier
        server_end = max(self._server_end, frontier)
        if phase is CapturePhase.RECONNECTING:
            self._trouble = self._trouble.again(message, frontier)
        times = self._trouble.times if phase is CapturePhase.RECONNECTING else 1
        written = self._writer.written
        self._health = replace(
            self._health,
            phase=phase,
            written_at=time.time(),
            position=str(position),
            frontier=str(frontier),
            server_end=str(server_end),
            message=message,
            times=times,
            error=error_facts(error) if error else None,
            acknowledged=str(self._acknowledged),
            last_commit_at=written.last_commit_at,
            counts=CaptureCounts(
                self._stream_bytes, written.transactions, written.rows, dict(self._connections)
            ),
            slot=self._slot,
            slot_read_at=self._slot_read_at,
        )
        write_health(self._path, self._health)
        size = self._health.spool_bytes
        lag = server_end - frontier
        self._send(CaptureState(phase, position, frontier, lag, size, message, times))
