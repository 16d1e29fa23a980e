"""What every streaming reader over a spool shares: offsets, limits, and waiting for segments.

How Spark drives a Python source sets the rules:

- One process per query holds the reader that plans. Tasks get copies that were pickled right
  after ``__init__``; such a copy knows only its partition.
- Offsets are ``{"lsn": "0/16B3748"}``: one key, compared as text. An offset is the end of a
  segment.
- The ``start`` that ``latestOffset`` is given is always the end of a batch in the commit log,
  or ``initialOffset``: what lies before it is not read again.
- A driver-side exception ends the query, so transient failures are retried here.
- With nothing new, ``latestOffset`` waits a while: Spark asks again every 10 ms otherwise.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.retry import retry_transient
from pgsluice.spool import SegmentInfo, SpoolReader

Offset = dict[str, str]

LONG_POLL_S = 0.5
POLL_S = 0.02


def offset_of(lsn: Lsn) -> Offset:
    """An LSN as Spark stores it."""
    return {"lsn": str(lsn)}


def lsn_of(offset: Offset) -> Lsn:
    """The LSN of an offset.

    Raises:
        SpoolError: the checkpoint holds something else.
    """
    try:
        return Lsn.parse(offset["lsn"])
    except (KeyError, TypeError, ValueError) as error:
        raise SpoolError(
            f"{offset!r} is not an offset of this source",
            hint="the checkpoint belongs to another source; give this query one of its own",
        ) from error


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Divides a spool's segments into batches.

    A subclass says where the stream begins (:meth:`registered_position`), what a batch's
    partitions are (:meth:`partitions_between`) and how a task reads one (``read``).

    Args:
        spool: the spool's folder.
        max_rows: rows after which a batch takes no further segment.
        max_bytes: bytes after which a batch takes no further segment.
    """

    def __init__(self, spool: Path, *, max_rows: int, max_bytes: int) -> None:
        self._path = spool
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        # Only in the planning process, and opened there: a task's copy has to pickle.
        self._spool: SpoolReader | None = None
        self._available_now: Lsn | None = None
        self._start: Lsn | None = None

    # What a subclass adds.

    @abstractmethod
    def registered_position(self) -> Lsn:
        """The position of the subscription's record; ``initialOffset`` answers it."""

    @abstractmethod
    def partitions_between(self, start: Lsn, end: Lsn) -> Sequence[InputPartition]:
        """The tasks of the batch (start, end]."""

    def begin(self, *, once: bool = False) -> None:
        """Lazy set-up, on the first call in the planning process.

        Args:
            once: the query ends by itself, at the position of now.
        """
        _stop_on_sigterm()

    def hold(self, start: Lsn) -> Lsn:
        """Keep what follows ``start`` in the spool, and return where to read from."""
        return start

    def look_after_capture(self) -> None:
        """Keep the query's own capture process running, if it has one."""

    def end_of_available_now(self) -> Lsn:
        """Where a query that ends by itself ends: the spool's position of now."""
        return self.reader().position()

    # What Spark calls.

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as below
        """The registered position."""
        self.begin()
        return offset_of(retry_transient(self.registered_position))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The rows that a batch should have; bytes are limited beside it."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the next batch ends; ``start`` when there is nothing new for a while.

        Raises:
            SpoolHole: the spool no longer has what follows ``start``.
        """
        self.begin()
        given = lsn_of(start)
        self._start = begin = retry_transient(lambda: self.hold(given))
        infos = retry_transient(lambda: self._pending_segments(begin))
        if not infos and self._available_now is None and self._wait_for_segment(begin):
            infos = retry_transient(lambda: self._pending_segments(begin))
        self.look_after_capture()
        end = retry_transient(lambda: self._end_within_limits(infos, limit))
        return offset_of(max(begin, end))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query."""
        self.begin(once=True)
        self._available_now = retry_transient(self.end_of_available_now)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch.

        Raises:
            SpoolError: the end lies before the start.
            SpoolHole: a part of the range is not in the spool.
        """
        begin, through = lsn_of(start), lsn_of(end)
        if through < begin:
            raise SpoolError(
                f"a batch would end at {through}, before its start {begin}",
                hint="is this the spool that the checkpoint was made with?",
                path=str(self._path),
            )
        if through == begin:
            return []
        return retry_transient(lambda: self.partitions_between(begin, through))

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """How far the query is behind; Spark shows it in the query's progress."""
        reader = self.reader()
        frontier, position = retry_transient(reader.frontier), retry_transient(reader.position)
        start = position if self._start is None else self._start
        # Between the last commit and the frontier there is nothing to read.
        lag = frontier - start if position > start else 0
        return {
            "lsn": str(position),
            "frontier": str(frontier),
            "lag_bytes": str(lag),
            "slot": reader.spool.identity.slot,
        }

    # Segments.

    def reader(self) -> SpoolReader:
        """The spool, opened once in the planning process."""
        if self._spool is None:
            self._spool = SpoolReader(self._path)
        return self._spool

    def _wait_for_segment(self, start: Lsn) -> bool:
        """Wait a while for a segment past ``start``; looking costs next to nothing."""
        deadline = time.monotonic() + LONG_POLL_S
        while time.monotonic() < deadline:
            self.look_after_capture()
            chain = retry_transient(self.reader().all_segments)
            if chain and chain[-1].end > start:
                return True
            time.sleep(POLL_S)
        return False

    def _pending_segments(self, start: Lsn) -> list[SegmentInfo]:
        """The segments past ``start``, up to the query's fixed end if it has one."""
        infos = self.reader().segments(start)
        if self._available_now is None:
            return infos
        return [info for info in infos if info.end <= self._available_now]

    def _end_within_limits(self, infos: Sequence[SegmentInfo], limit: ReadLimit) -> Lsn:
        """The end of the last segment that the limits allow: at least the first segment's."""
        rows, size, files = self._limits(limit)
        end = Lsn(0)
        for info in infos:
            rows -= info.header.counts.changes
            size -= info.size_bytes
            files -= 1
            end = info.end
            if rows <= 0 or size <= 0 or files <= 0:
                break
        return end

    def _limits(self, limit: ReadLimit) -> tuple[float, float, float]:
        """Rows, bytes and segments of one batch."""
        match limit:
            case ReadAllAvailable():
                return math.inf, math.inf, math.inf
            case ReadMaxBytes():
                return math.inf, limit.max_bytes, math.inf
            case ReadMaxFiles():
                return math.inf, math.inf, limit.max_files
            case ReadMaxRows():
                return limit.max_rows, self._max_bytes, math.inf
            case _:
                return self._max_rows, self._max_bytes, math.inf


def _stop_on_sigterm() -> None:
    """Let ``stop`` and atexit run: Spark ends the process by SIGTERM and calls nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)
