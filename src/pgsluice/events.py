"""Events that capture, copies and subscriptions report while they run, through a callback.

The rooms that report events do not know who displays them: ``cli`` connects the callback to a
:class:`~pgsluice.monitor.live.LiveView`. Events are for display only: no decision depends on them,
so a lost event does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.lsn import Lsn

INSERTS_ONLY = "inserts only"
"""The start of the message about a table whose updates and deletes are not sent."""


class CapturePhase(StrEnum):
    """What capture is doing."""

    STARTING = "starting"
    STREAMING = "streaming"
    WAITING = "waiting for room in the spool"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Capture's state, reported at each change and about once a second.

    Attributes:
        position: end LSN of the last transaction in the spool; None before the first.
        frontier: everything up to this LSN is received and durable.
        lag_bytes: the server's flush LSN minus the frontier; None: not known.
        spool_bytes: the size of the spool; None: not known.
        message: why capture cannot continue, or None.
        times: how many connections in a row ended for this reason without receiving more.
    """

    phase: CapturePhase
    position: Lsn | None = None
    frontier: Lsn | None = None
    lag_bytes: int | None = None
    spool_bytes: int | None = None
    message: str | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A batch of a subscription was applied to all of its tables.

    Attributes:
        position: the batch's end.
        rows: the number of changes, over all tables.
        seconds: from planning to the last table's commit.
        tables: how many tables had changes.
        lag_bytes: bytes of received WAL since the oldest change that a target lacks; 0: none lacks
            any.
        lag_s: the age of that change.
        behind: the tables (schema and name) that lack changes from before the position.
    """

    subscription: str
    position: Lsn
    rows: int
    seconds: float
    tables: int
    lag_bytes: int = 0
    lag_s: float = 0.0
    behind: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TableApplied:
    """A batch was applied to one table.

    Attributes:
        applied_through: the table's position now.
        rows: the number of applied changes.
        seconds: the duration of its task.
        rows_skipped: rows that changes updated or deleted, but that the target did not have.
        rows_inserted, rows_updated, rows_deleted: at the target.
        merge_s: the duration of its commit to the target.
        bytes_written: the bytes of new files of the target.
        visible_after_s: from the commit of its oldest change until now; None: there was none.
    """

    subscription: str
    schema: str
    table: str
    applied_through: Lsn
    rows: int
    seconds: float
    rows_skipped: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    merge_s: float = 0.0
    bytes_written: int = 0
    visible_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch of a subscription failed as a whole; it is tried again.

    Attributes:
        why: in one sentence, or several lines.
    """

    subscription: str
    why: str


@dataclass(frozen=True, slots=True)
class TableStateChanged:
    """A table's state changed; the letters are those of
    :class:`~pgsluice.spool.records.record.TableState`.

    Attributes:
        state: ``u`` if the table is unpublished and its target is no longer updated.
        error: why it is parked.
        incomplete: which changes its target does not get, although the table is not parked.
        copy_words: the reason for a new copy of the table, as text; empty: none is needed.
    """

    subscription: str
    schema: str
    table: str
    state: str
    error: str | None = None
    incomplete: tuple[str, ...] = ()
    copy_words: str = ""


_TELLING_BYTES = 64 * 2**20
_TELLING_SHARE = 0.05
"""The minimum duration of a copy, in seconds, before its rate predicts the remaining time."""


@dataclass(frozen=True, slots=True)
class CopyAmount:
    """The amount of data in copies, of one table or of several.

    Attributes:
        ranges, all_ranges: the copied chunks, and all chunks; a task copies one chunk.
        rows: copied so far.
        bytes, all_bytes: approximate bytes of the source read so far, and in all.
        rows_per_s, bytes_per_s: over the last half minute, or over the last chunks if these took
            longer; 0 before the first chunk is done.
    """

    ranges: int = 0
    all_ranges: int = 0
    rows: int = 0
    bytes: int = 0
    all_bytes: int = 0
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def left_s(self) -> float | None:
        """The remaining time at this rate, in seconds; None: unknown. It is also unknown while
        small tables are copied first, because their rate is not that of large tables."""
        if self.ranges >= self.all_ranges:
            return 0.0
        enough_bytes = min(_TELLING_BYTES, self.all_bytes * _TELLING_SHARE)
        if not self.bytes_per_s or self.bytes < enough_bytes:
            return None
        return max(self.all_bytes - self.bytes, 0) / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of a table's copy.

    Attributes:
        is_done: the copy is committed at the target.
    """

    subscription: str
    schema: str
    table: str
    amount: CopyAmount
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class CopiesProgress:
    """The progress of all running copies of a subscription, with those that ended since they
    started.

    Attributes:
        tables, all_tables: how many tables are copied, and how many there are.
        waits_for: the reasons why tables wait.
    """

    subscription: str
    tables: int
    all_tables: int
    amount: CopyAmount
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run before it applies changes: what it does or waits for.

    Attributes:
        doing: for example ``starting Spark``; empty: the run applies changes now.
        room: what the line of a log is about.
    """

    doing: str
    room: str = "run"


MetricsEvent = (
    CaptureState
    | BatchFinished
    | BatchFailed
    | TableApplied
    | TableStateChanged
    | CopyProgress
    | CopiesProgress
    | RunStep
)
MetricsCallback = Callable[[MetricsEvent], None]
