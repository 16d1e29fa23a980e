"""Events that capture, copies and subscriptions report while they run, through a callback.

Those rooms do not know who shows the events: ``cli`` connects the callback to a
:class:`~pgsluice.monitor.live.LiveView`. Events are only shown: nothing is decided by them, so a
lost event does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.lsn import Lsn

INSERTS_ONLY = "inserts only"
"""How the sentence begins of a table whose updates and deletes are not sent."""


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
        phase: what capture is doing.
        position: end LSN of the last transaction in the spool; None before the first.
        frontier: everything up to this LSN is received and durable.
        lag_bytes: the server's flush LSN minus the frontier; None: not known.
        spool_bytes: the size of the spool; None: not known.
        message: why capture cannot go on, or None.
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
    """A micro-batch of a subscription was applied to all of its tables.

    Attributes:
        subscription: its name.
        position: the batch's end.
        rows: the number of changes, over all tables.
        seconds: from planning to the last table's commit.
        tables: how many tables had changes.
        lag_bytes: received WAL from the oldest change on that a target lacks; 0: none lacks any.
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
        subscription, schema, table: names.
        applied_through: the table's position now.
        rows: the number of applied changes.
        seconds: the duration of its task.
        rows_skipped: rows that changes updated or deleted, but that the target did not have.
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
    """A table's state changed; the letters are those of
    :class:`~pgsluice.spool.records.record.TableState`.

    Attributes:
        state: ``u`` where its target stands still.
        error: why it is parked.
        incomplete: what its target does not get, although it is not parked.
        copy_words: what is copied again now, and why; empty: nothing is.
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
"""After so much of a copy, its rate tells how long the rest takes."""


@dataclass(frozen=True, slots=True)
class CopyAmount:
    """How much is copied, of one table or of several.

    Attributes:
        ranges, all_ranges: how many ranges are copied, and in all: a task copies one range.
        rows: copied so far.
        bytes, all_bytes: about how much of the source is read, and is to be read.
        rows_per_s, bytes_per_s: over the last half minute, or the last ranges if these took longer;
            0 if none has ended.
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
        """How long the rest takes at this rate; None: it is not known, also because small tables
        come first, and their rate is not that of the large ones."""
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
        subscription, schema, table: names.
        is_done: the copy is committed at the target.
    """

    subscription: str
    schema: str
    table: str
    amount: CopyAmount
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class CopiesProgress:
    """The progress of all copies of a subscription that run now, and of those that ended since.

    Attributes:
        subscription: its name.
        tables, all_tables: how many are copied, and in all.
        waits_for: what tables wait for, each for one of these.
    """

    subscription: str
    tables: int
    all_tables: int
    amount: CopyAmount
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunStep:
    """What a run does, or waits for, before changes are applied.

    Attributes:
        doing: as ``starting Spark``; empty: changes are applied now.
    """

    doing: str


MetricsEvent = (
    CaptureState
    | BatchFinished
    | TableApplied
    | TableStateChanged
    | CopyProgress
    | CopiesProgress
    | RunStep
)
MetricsCallback = Callable[[MetricsEvent], None]
