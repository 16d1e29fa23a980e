"""The current state of capture, in a small file in the spool, for ``status`` and the parent
process.

The file is replaced as a whole and not synced, because nothing durable depends on it. ``run
--once`` uses it to find out whether the spool is full.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pgsluice.errors
from pgsluice.errors import PgsluiceError
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.processes import is_running
from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import CAPTURE_HEALTH


@dataclass(frozen=True, slots=True)
class CaptureHealth:
    """The state of capture, as capture reports it.

    Attributes:
        written_at: seconds since 1970.
        server_end: the end of the server's WAL, as last reported, as text.
        spool_bytes: the size of the spool; None: unknown.
        message: the problem, if there is one.
        times: how many connections in a row ended with this message.
        error: the error that ended capture: ``kind``, ``what``, ``hint``; None otherwise.
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

    @property
    def lag_bytes(self) -> int:
        """Bytes of WAL on the server after the received-through LSN, as last reported."""
        return max(0, Lsn.parse(self.server_end) - Lsn.parse(self.frontier))

    def is_alive(self) -> bool:
        """Whether capture's process exists on this machine."""
        return is_running(self.pid)


def error_facts(error: PgsluiceError) -> dict[str, Any]:
    """An error in the form of the file."""
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
        return CaptureHealth(**{**raw, "phase": CapturePhase(raw["phase"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
