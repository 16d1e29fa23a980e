"""The current state of capture, in a small file in the spool, for ``status`` and the parent
process.

The file is replaced as a whole and not synced, because nothing durable depends on it. ``run
--once`` uses it to find out whether the spool is full.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pgsluice.errors
from pgsluice.catalog.server import SlotInfo
from pgsluice.errors import PgsluiceError
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import CAPTURE_HEALTH
from pgsluice.system.processes import is_running


@dataclass(frozen=True, slots=True)
class CaptureCounts:
    """What a capture has done since its process started.

    Attributes:
        transactions, rows: written to the spool; rows are those of inserts, updates and deletes.
        connections: that began to stream (``started``), and that ended, by their outcome.
    """

    stream_bytes: int = 0
    transactions: int = 0
    rows: int = 0
    connections: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaptureHealth:
    """The state of capture, as capture reports it.

    Attributes:
        written_at: seconds since 1970.
        server_end: the end of the server's WAL, as last reported, as text.
        times: how many connections in a row ended with this message.
        error: the error that ended capture: ``kind``, ``what``, ``hint``; None otherwise.
        acknowledged: the flush LSN that was reported to the server last, as text.
        last_commit_at: when the last transaction in the spool was committed, in seconds since 1970;
            None: none has come since the process started.
        slot: the slot as the catalog had it last; None: not read yet.
        slot_read_at: when it was read, in seconds since 1970.
    """

    pid: int
    phase: CapturePhase
    written_at: float
    position: str = "0/0"
    frontier: str = "0/0"
    server_end: str = "0/0"
    spool_bytes: int | None = None
    message: str | None = None
    times: int = 1
    error: dict[str, Any] | None = None
    acknowledged: str = "0/0"
    last_commit_at: float | None = None
    counts: CaptureCounts = field(default_factory=CaptureCounts)
    slot: SlotInfo | None = None
    slot_read_at: float | None = None

    @property
    def lag_bytes(self) -> int:
        """Bytes of WAL on the server after the received-through LSN, as last reported."""
        return max(0, Lsn.parse(self.server_end) - Lsn.parse(self.frontier))

    def is_alive(self) -> bool:
        """Whether capture's process exists on this machine."""
        return is_running(self.pid)


def error_facts(error: PgsluiceError) -> dict[str, Any]:
    """An error as JSON values, as ``capture.json`` has it."""
    return {"kind": type(error).__name__, "what": error.what, "hint": error.hint}


def error_of(facts: dict[str, Any]) -> PgsluiceError:
    """The error that :func:`error_facts` wrote."""
    kind = getattr(pgsluice.errors, str(facts.get("kind")), PgsluiceError)
    if not (isinstance(kind, type) and issubclass(kind, PgsluiceError)):
        kind = PgsluiceError
    return kind(str(facts.get("what")), hint=facts.get("hint"))


def write_health(spool_path: Path, health: CaptureHealth) -> None:
    """Replace the file; errors of the disk are ignored."""
    raw = {**asdict(health), "phase": health.phase.value}
    replace_json_if_possible(spool_path / CAPTURE_HEALTH, raw)


def read_health(spool_path: str | Path) -> CaptureHealth | None:
    """The last reported state; None if capture never ran, or if the file is unreadable."""
    try:
        raw = json.loads((Path(spool_path) / CAPTURE_HEALTH).read_text())
        slot = raw.get("slot")
        if slot is not None:
            confirmed = slot["confirmed_flush_lsn"]
            slot["confirmed_flush_lsn"] = None if confirmed is None else Lsn(confirmed)
        parsed = {"phase": CapturePhase(raw["phase"]), "slot": slot and SlotInfo(**slot)}
        return CaptureHealth(**{**raw, **parsed, "counts": CaptureCounts(**raw.get("counts", {}))})
    except (OSError, ValueError, TypeError, KeyError):
        return None
