"""What happens while it runs, as values: what the working rooms report through a callback.

The rooms below know no view and no file of metrics: they call what they were given with one of
these. ``cli`` wires the callback to a :class:`~pgsluice.monitor.live.LiveView`. Events are
facts of the moment; nothing is decided by them, and losing one loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.lsn import Lsn


class CapturePhase(StrEnum):
    """What capture is doing."""

    STARTING = "starting"
    STREAMING = "streaming"
    WAITING = "waiting for room in the spool"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Capture's state, on each change of it and about once a second.

    Attributes:
        position: end LSN of the last transaction in the spool; None before the first.
        frontier: up to where all is received and durable.
        lag_bytes: the server's flush LSN less the frontier; None: not known.
        spool_bytes: what the spool weighs; None: not known.
        message: why, when something is in the way.
    """

    phase: CapturePhase
    position: Lsn | None = None
    frontier: Lsn | None = None
    lag_bytes: int | None = None
    spool_bytes: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A micro-batch of a subscription is applied to every table that it covers.

    Attributes:
        position: the batch's end.
        rows: changes applied to all tables.
        seconds: from planning to the last table's commit.
        tables: how many tables had work.
        lag_bytes: what the server has beyond the position; 0: nothing waits.
        lag_s: age of the oldest change that waits; 0: nothing waits.
    """

    subscription: str
    position: Lsn
    rows: int
    seconds: float
    tables: int
    lag_bytes: int = 0
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableApplied:
    """One table's task is done.

    Attributes:
        applied_through: the table's position now.
        rows: changes that it applied.
        seconds: its task's time.
        rows_skipped: rows that were updated or deleted and that the target lacks.
    """

    subscription: str
    schema: str
    table: str
    applied_through: Lsn
    rows: int
    seconds: float
    rows_skipped: int = 0


@dataclass(frozen=True, slots=True)
class TableStateChanged:
    """A table's relation state changed: ``i d f s r`` or ``p`` (parked, with the error)."""

    subscription: str
    schema: str
    table: str
    state: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far the copy of a table is.

    Attributes:
        rows: copied so far.
        expected_rows: the server's estimate; None: unknown. Never exact.
        is_done: the copy is committed at the target.
    """

    subscription: str
    schema: str
    table: str
    rows: int
    expected_rows: int | None = None
    is_done: bool = False


MetricsEvent = CaptureState | BatchFinished | TableApplied | TableStateChanged | CopyProgress
MetricsCallback = Callable[[MetricsEvent], None]
