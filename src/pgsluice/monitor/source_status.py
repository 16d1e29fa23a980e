"""What ``status`` says of the server and of capture.

The server is asked on a connection of its own, or what capture knows of it is taken from capture's
file. Both give the same values, so that everything else need not know which it was.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pgsluice.capture.health import CaptureCounts, CaptureHealth, error_of
from pgsluice.catalog.publications.managed import statements_for_others
from pgsluice.catalog.server import SlotInfo, flush_lsn, slot_info
from pgsluice.config import SourceConfig
from pgsluice.errors import PgsluiceError, SourceRefused
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.monitor.lags import utc
from pgsluice.monitor.wording import lsn_text
from pgsluice.replication import connect_sql

_TIMEOUT_S = 5.0
_SILENT_S = 60.0
"""The age, in seconds, at which capture's state is too old: it writes its state each second, and
less often while it connects."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The server's side. If it did not answer, ``error`` says why and the other fields are None.

    Attributes:
        flush_lsn: the LSN up to which the server's WAL is durable.
        slot: None also if the slot does not exist.
        left: statements for other roles that new tables need in order to be published and copied.
        read_at: when the slot was read, in seconds since 1970; None: it was not.
    """

    slot_name: str
    slot: SlotInfo | None = None
    flush_lsn: Lsn | None = None
    error: str | None = None
    left: tuple[str, ...] = ()
    read_at: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the slot was read, so that none means that there is none."""
        return self.read_at is not None

    def to_json(self) -> dict[str, Any]:
        slot = self.slot
        return {
            "slot": self.slot_name,
            "exists": slot is not None if self.is_known else None,
            "active": (slot is not None and slot.active_pid is not None) if self.is_known else None,
            "inactive_since": slot.inactive_since if slot else None,
            "confirmed_flush_lsn": lsn_text(slot.confirmed_flush_lsn if slot else None),
            "retained_bytes": slot.retained_bytes if slot else None,
            "wal_status": slot.wal_status if slot else None,
            "safe_wal_bytes": slot.safe_wal_bytes if slot else None,
            "flush_lsn": lsn_text(self.flush_lsn),
            "error": self.error,
            "statements_needed": list(self.left),
            "read_at": self.read_at,
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
        pid: its process; None: it never ran.
        is_streaming: it receives, and reported that within the last minute.
        acknowledged: the flush LSN that was reported to the server last.
        last_commit_at: when the last transaction in the spool was committed, in seconds since 1970;
            None: not known.
        counts: since its process started.
        is_elsewhere: another machine's process receives from the slot, into a spool in an object
            store.
    """

    is_running: bool = False
    phase: str | None = None
    server_end: Lsn | None = None
    message: str | None = None
    times: int = 1
    reported_at: float | None = None
    pid: int | None = None
    is_streaming: bool = False
    acknowledged: Lsn | None = None
    last_commit_at: float | None = None
    counts: CaptureCounts = field(default_factory=CaptureCounts)
    is_elsewhere: bool = False

    @classmethod
    def of(cls, health: CaptureHealth | None) -> CaptureStatus:
        """From the file that capture writes, if there is one; checks whether it is still alive."""
        if health is None:
            return cls()
        is_running = health.is_alive() and health.phase is not CapturePhase.STOPPED
        is_silent = is_running and time.time() - health.written_at > _SILENT_S
        streams = is_running and health.phase is CapturePhase.STREAMING and not is_silent
        error = error_of(health.error) if health.error else None
        message = _silent(health) if is_silent else None
        acknowledged = Lsn.parse(health.acknowledged)
        return cls(
            is_running,
            str(health.phase) if is_running or error else None,
            Lsn.parse(health.server_end) if streams else None,
            str(error) if error is not None else message or health.message,
            health.times,
            health.written_at,
            health.pid,
            streams,
            acknowledged or None,
            health.last_commit_at,
            health.counts,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "running": self.is_running,
            "streaming": self.is_streaming,
            "elsewhere": self.is_elsewhere,
            "phase": self.phase,
            "message": self.message,
            "times": self.times,
            "reported_at": self.reported_at,
            "acknowledged": lsn_text(self.acknowledged),
            "last_commit_at": self.last_commit_at,
            "counts": asdict(self.counts),
        }


def _silent(health: CaptureHealth) -> str:
    since = utc(health.written_at)
    return (
        f"the capture process {health.pid} has reported nothing since {since}: it was suspended "
        "(SIGSTOP), or hangs\n"
        f"  → kill this process (kill -9 {health.pid}); an active `pgsluice run` restarts it"
    )


def ask_source(source: SourceConfig) -> SourceStatus:
    """The server's side, on a connection of its own; never raises for the server's state."""
    timeout_s = min(source.connect_timeout_s, _TIMEOUT_S)
    try:
        with connect_sql(
            source.conninfo, "reading the slot", timeout_s=timeout_s, application="status"
        ) as connection:
            slot = slot_info(connection, source.slot)
            left = tuple[str, ...]()
            if slot is not None:  # before the first run, `check` says what is missing
                with suppress(SourceRefused):  # the run says what is wrong with the publications
                    names = source.publications
                    left = statements_for_others(connection, names, names)
            flushed = flush_lsn(connection)
            return SourceStatus(source.slot, slot, flushed, left=left, read_at=time.time())
    except PgsluiceError as error:
        return SourceStatus(source.slot, error=error.what)


def known_source(source: SourceConfig, health: CaptureHealth | None) -> SourceStatus:
    """The server's side as capture knows it, without a connection.

    The server's flush LSN is only known while capture streams. The slot is that of the time when
    capture read it last.
    """
    if health is None:
        return SourceStatus(source.slot)
    return SourceStatus(
        source.slot,
        health.slot,
        CaptureStatus.of(health).server_end,
        read_at=health.slot_read_at,
    )
