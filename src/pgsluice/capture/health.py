"""What capture does now, in a small file in the spool: for ``status`` and the parent process.

The file is replaced as a whole and not synced: nothing durable depends on it. ``run --once`` reads
from it whether the spool is full.
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
    """What capture says of itself.

    Attributes:
        written_at: seconds since 1970.
        server_end: how far the server's WAL was when it last said so, as text.
        spool_bytes: what the spool weighs; None: not known yet.
        message: why, when something is in the way.
        times: how often in a row the message was the same, with a pause between.
        error: what it ended by: ``kind``, ``what``, ``hint``; None otherwise.
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
        """WAL that the server has beyond the frontier, as far as it said."""
        return max(0, Lsn.parse(self.server_end) - Lsn.parse(self.frontier))

    def is_alive(self) -> bool:
        """Whether its process exists on this machine."""
        return is_running(self.pid)


def error_facts(error: PgsluiceError) -> dict[str, Any]:
    """An error as the file has it."""
    return {"kind": type(error).__name__, "what": error.what, "hint": error.hint}


def error_of(facts: dict[str, Any]) -> PgsluiceError:
    """The error that :func:`error_facts` described."""
    kind = getattr(pgsluice.errors, str(facts.get("kind")), PgsluiceError)
    if not (isinstance(kind, type) and issubclass(kind, PgsluiceError)):
        kind = PgsluiceError
    return kind(str(facts.get("what")), hint=facts.get("hint"))


def write_health(spool_path: Path, health: CaptureHealth) -> None:
    """Replace the file; a disk that is full does not matter here."""
    raw = {**asdict(health), "phase": health.phase.value}
    replace_json_if_possible(spool_path / CAPTURE_HEALTH, raw)


def read_health(spool_path: str | Path) -> CaptureHealth | None:
    """What capture said last; None when none ever ran, or the file is not readable."""
    try:
        raw = json.loads((Path(spool_path) / CAPTURE_HEALTH).read_text())
        return CaptureHealth(**{**raw, "phase": CapturePhase(raw["phase"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
