"""Reports the state of capture: as events, and in the health file."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from pgsluice.capture.health import CaptureCounts, CaptureHealth, error_facts, write_health
from pgsluice.catalog.server import SlotInfo
from pgsluice.catalog.visibility import TransactionStatus
from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.events import CapturePhase, CaptureState, MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolWriter
from pgsluice.spool.segments.parts_writer import WaitingTransaction
from pgsluice.spool.segments.retention import RetentionState, limit_words
from pgsluice.sql import quote_literal

_HELD_S = 1.0
"""How long a commit may wait for a standby before a warning, in seconds."""
_HELD = (
    "the server's catalog does not show the next transaction yet: its commit waits for a"
    " synchronous standby (synchronous_standby_names)"
)


Unfinished: TypeAlias = tuple[WaitingTransaction, TransactionStatus | None]
"""The largest transaction whose end was not received, and its outcome on the server; None: the
server no longer knows it."""


class CaptureReporter:
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
        self.stream_bytes = 0
        self._connections: Counter[str] = Counter()
        self._slot: SlotInfo | None = None
        self._slot_read_at: float | None = None
        self._trouble: tuple[str | None, Lsn] | None = None
        """The message and the frontier when the last connection ended."""
        self._times = 0
        self.lasting: str | None = None
        self._held: str | None = None

    def warn(self, sentence: str) -> None:
        """Report a problem that does not stop the work."""
        self.report(self._health.phase, sentence)

    def report_held(self, seconds: float) -> None:
        """Called while the catalog does not show a received transaction yet.

        Args:
            seconds: the time since it was received; 0: the stream is no longer held.
        """
        self._held = _HELD if seconds >= _HELD_S else None

    def count_connection(self, outcome: str) -> None:
        """Count a connection that began to stream, or one that ended, by its outcome: one of a few
        words."""
        self._connections[outcome] += 1

    def note_slot(self, slot: SlotInfo | None) -> None:
        """Take the slot as the catalog has it now; from any thread."""
        self._slot, self._slot_read_at = slot, time.time()

    def report_progress(
        self,
        server_end: Lsn,
        acknowledged: Lsn,
        retained: RetentionState | None,
        largest: Unfinished | None,
    ) -> None:
        """Called about once a second, and when the spool is full or has room again.

        Args:
            acknowledged: the flush LSN that was reported to the server last.
            retained: what the spool contains; None before it was measured.
            largest: while the spool is full: its largest transaction whose end was not received.
        """
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
                message += f". {self._about(*largest)}"
        if retained.problem:
            message += f". {retained.problem}"
        self.report(CapturePhase.WAITING, message)

    def _about(self, transaction: WaitingTransaction, status: TransactionStatus | None) -> str:
        """A description of a transaction, and how to make room."""
        xid, mebibytes = transaction.xid, transaction.size_bytes / 2**20
        name, more = f"{mebibytes:.1f} MiB are transaction {xid}", self._room
        if status is TransactionStatus.IN_PROGRESS and transaction.gid is not None:
            gid = quote_literal(transaction.gid)
            return f"{name}, which is prepared: ROLLBACK PREPARED {gid} frees it, or {more}"
        ends = {
            TransactionStatus.IN_PROGRESS: "which is open (its session has this backend_xid in "
            f"pg_stat_activity): its rollback frees it; if it is to commit, {more}",
            TransactionStatus.ABORTED: "which was rolled back: it is dropped now",
            TransactionStatus.COMMITTED: f"which has committed and needs more room: {more}",
            None: f"whose outcome the server no longer knows: {more}",
        }
        return f"{name}, {ends[status]}"

    def report(
        self, phase: CapturePhase, message: str | None = None, error: PgsluiceError | None = None
    ) -> None:
        """Report the current state of capture, and the problem, if there is one."""
        message = message or self._held or self.lasting
        position, frontier = self._writer.position, self._writer.frontier
        server_end = max(self._server_end, frontier)
        if phase is CapturePhase.RECONNECTING:
            self._times = self._times + 1 if (message, frontier) == self._trouble else 1
            self._trouble = message, frontier
        times = self._times if phase is CapturePhase.RECONNECTING else 1
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
                self.stream_bytes, written.transactions, written.rows, dict(self._connections)
            ),
            slot=self._slot,
            slot_read_at=self._slot_read_at,
        )
        write_health(self._path, self._health)
        size = self._health.spool_bytes
        lag = server_end - frontier
        self._send(CaptureState(phase, position, frontier, lag, size, message, times))
