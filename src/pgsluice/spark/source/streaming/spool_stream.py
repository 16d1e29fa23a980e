"""The base class of streaming readers of a spool: offsets, limits, and waiting for segments.

Its rules follow from how Spark uses a Python source:

- One process for each query plans its batches. Tasks get copies of the reader that were pickled
  directly after ``__init__``; such a copy only knows its partition.
- An offset is the end of a transaction, ``{"lsn": "0/16B3748"}``. Spark compares offsets as text: a
  subclass may only add keys with constant values, in a constant order.
- The ``start`` of ``latestOffset`` is the end of a committed batch, or ``initialOffset``. Data
  before it is never read again.
- An exception in the planning process ends the query, so transient failures are retried here.
- Without new data, ``latestOffset`` waits for a while: otherwise Spark calls it every 10 ms.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.api import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pgsluice.spark.source.streaming.retry import retry_transient
from pgsluice.spool import SegmentInfo, SpoolReader
from pgsluice.spool.layout import SEGMENTS
from pgsluice.spool.notices import FolderNotices
from pgsluice.spool.segments.batch_limits import BatchLimits

Offset = dict[str, str]

LONG_POLL_S = 1.0
POLL_S = 0.02


def offset_of(lsn: Lsn) -> Offset:
    """An LSN in the form of Spark's offsets."""
    return {"lsn": str(lsn)}


def lsn_of(offset: Offset) -> Lsn:
    """The LSN of an offset.

    Raises:
        SpoolError: the checkpoint belongs to another kind of source.
    """
    try:
        return Lsn.parse(offset["lsn"])
    except (KeyError, TypeError, ValueError) as error:
        raise SpoolError(
            f'the checkpoint has the offset {offset!r}, which format("pgoutput") did not write',
            hint="set another checkpointLocation: this checkpoint belongs to another source",
        ) from error


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Divides a spool's segments into batches.

    A subclass defines where the stream starts (:meth:`registered_position`), the partitions of a
    batch (:meth:`partitions_between`), and how a task reads one (``read``).

    Args:
        max_rows: the number of rows at which a batch includes no further segment.
        max_bytes: the size at which a batch includes no further segment.
        gives_start: Spark says where a batch starts, and which limit it has.
        long_poll_s: how long to wait for new data, in seconds, before a query hears of none.
    """

    def __init__(
        self,
        spool: Path,
        *,
        max_rows: int,
        max_bytes: int,
        gives_start: bool = HAS_READ_LIMITS,
        long_poll_s: float = LONG_POLL_S,
    ) -> None:
        self._path = spool
        self._long_poll_s = long_poll_s
        self._gives_start = gives_start
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        # Opened only in the planning process: the copies for tasks are pickled.
        self._spool: SpoolReader | None = None
        self._notices: FolderNotices | None = None
        self._available_now: Lsn | None = None
        self._end: Lsn | None = None

    # Implemented by subclasses.

    @abstractmethod
    def registered_position(self) -> Lsn:
        """The position in the subscription's record, which ``initialOffset`` returns."""

    @abstractmethod
    def partitions_between(self, start: Lsn, end: Lsn) -> Sequence[InputPartition]:
        """The tasks of the batch (start, end]."""

    @abstractmethod
    def last_planned(self) -> Offset:
        """The end of the last batch that was planned, also by an earlier process of the query.

        Only for versions of Spark that do not say where a batch starts.
        """

    def tag(self) -> Offset:
        """Additional keys of each offset."""
        return {}

    def check(self, offset: Offset) -> None:
        """Refuse an offset of another subscription's checkpoint."""

    def begin(self, *, once: bool = False) -> None:
        """Lazy set-up, on the first call in the planning process.

        Args:
            once: the query ends by itself at the current position.
        """
        _stop_on_sigterm()

    def hold(self, start: Lsn) -> Lsn:
        """Keep the data after ``start`` in the spool; returns where to read from."""
        return start

    def look_after_capture(self) -> None:
        """Keep the query's own capture process running, if it has one."""

    def end_inside(self, info: SegmentInfo, start: Lsn, rows: int, *, is_first: bool) -> Lsn:
        """The end of a batch that may not include all rows of a segment.

        Args:
            info: the segment.
            start: the end of the batch without the segment; it may be inside the segment.
            rows: how many more rows the batch may include.
            is_first: the batch is still empty, and has to include at least one transaction.
        """
        return info.end

    def end_of_available_now(self) -> Lsn:
        """The end of a query that ends by itself: the spool's current position."""
        return self.reader().position()

    # Called by Spark.

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, like those below
        """The registered position."""
        self.begin()
        return self._offset(retry_transient(self.registered_position))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit on a batch's rows; its bytes are also limited."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """The end of the next batch; ``start`` if there was no new data for a while.

        Args:
            start, limit: None from Spark 4.0 and 4.1: the end of the last batch, and the limits
                of the query's options.

        Raises:
            SpoolHole: the spool has dropped data after ``start``.
        """
        self.begin()
        return self.next_offset(self.last_planned() if start is None else start, limit)

    def next_offset(self, start: Offset, limit: ReadLimit | None) -> Offset:
        """The end of the batch after ``start``."""
        retry_transient(lambda: self.check(start))
        given = lsn_of(start)
        begin = retry_transient(lambda: self.hold(given)) if self._gives_start else given
        infos = retry_transient(lambda: self._pending_segments(begin))
        if not infos and self._available_now is None and self._wait_for_segment(begin):
            infos = retry_transient(lambda: self._pending_segments(begin))
        self.look_after_capture()
        end = retry_transient(lambda: self._end_within_limits(begin, infos, limit))
        self._end = max(begin, end)
        return self._offset(self._end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that ends by itself."""
        self.begin(once=True)
        self._available_now = retry_transient(self.end_of_available_now)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch.

        Raises:
            SpoolError: the end is before the start.
            SpoolHole: the spool lacks a part of the range.
        """
        self.begin()
        retry_transient(lambda: self.check(end))
        begin, through = lsn_of(start), lsn_of(end)
        if through < begin:
            raise SpoolError(
                f"the query's batch would end at {through}, before its start at {begin}: the spool "
                "is not the one that the query has read so far",
                hint="set the option spool to the spool that this checkpoint was made with",
                path=str(self._path),
            )
        if through == begin:
            return []
        return retry_transient(lambda: self.partitions_between(begin, through))

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """How far the query is behind after its last planned batch, for Spark's progress."""
        reader = self.reader()
        frontier, position = retry_transient(reader.frontier), retry_transient(reader.position)
        end = position if self._end is None else self._end
        # There are no changes between the last commit and the frontier.
        lag = frontier - end if position > end else 0
        return {
            "lsn": str(position),
            "frontier": str(frontier),
            "lag_bytes": str(lag),
            "lag_seconds": f"{retry_transient(lambda: self._lag_s(end)):.1f}",
            "slot": reader.spool.identity.slot,
        }

    def _offset(self, lsn: Lsn) -> Offset:
        """An LSN in the form of this query's checkpoint."""
        return {**offset_of(lsn), **self.tag()}

    # Segments.

    def reader(self) -> SpoolReader:
        """The spool's reader, opened once in the planning process."""
        if self._spool is None:
            self._spool = SpoolReader(self._path)
        return self._spool

    def _wait_for_segment(self, start: Lsn) -> bool:
        """Wait a while for a segment after ``start``."""
        if self._notices is None:
            self._notices = FolderNotices(self._path / SEGMENTS)
        deadline = time.monotonic() + self._long_poll_s
        while (left_s := deadline - time.monotonic()) > 0:
            self.look_after_capture()
            chain = retry_transient(self.reader().all_segments)
            if chain and chain[-1].end > start:
                return True
            self._notices.wait(left_s)
        return False

    def _pending_segments(self, start: Lsn) -> list[SegmentInfo]:
        """The segments after ``start``, up to the query's fixed end if it has one."""
        infos = self.reader().segments(start)
        if self._available_now is None:
            return infos
        return [info for info in infos if info.end <= self._available_now]

    def _lag_s(self, end: Lsn) -> float:
        """Seconds since the first commit after ``end``, in whole segments; 0 if there is none."""
        waiting = next((info for info in self.reader().all_segments() if info.end > end), None)
        committed = None if waiting is None else waiting.header.first_commit_timestamp
        return 0.0 if committed is None else max(0.0, time.time() - committed / 1e6)

    def _end_within_limits(
        self, start: Lsn, infos: Sequence[SegmentInfo], limit: ReadLimit | None
    ) -> Lsn:
        """The end of the last transaction within the limits, or of the first one."""
        end, next_segment, rows = self._limits(limit).take(start, infos)
        if next_segment is None:
            return end
        return self.end_inside(next_segment, end, int(rows), is_first=end == start)

    def _limits(self, limit: ReadLimit | None) -> BatchLimits:
        match limit:
            case ReadAllAvailable():
                return BatchLimits()
            case ReadMaxBytes():
                return BatchLimits(size_bytes=limit.max_bytes)
            case ReadMaxFiles():
                return BatchLimits(segments=limit.max_files)
            case ReadMaxRows():
                return BatchLimits(limit.max_rows, self._max_bytes)
            case _:
                return BatchLimits(self._max_rows, self._max_bytes)


def _stop_on_sigterm() -> None:
    """Exit cleanly on SIGTERM, so that atexit functions run: Spark ends the process without calling
    ``stop``."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)
