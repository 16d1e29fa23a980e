"""``spark.readStream.format("pgoutput")``: offsets, limits, and what keeps the spool's data.

Rules, from how Spark drives a Python source:

- One process per query holds the reader that plans (reader #1); tasks get copies that were
  pickled right after ``__init__`` and know only their partition.
- Offsets are ``{"lsn": "0/16B3748"}``, one key, compared as text. An offset is a segment's end.
- The registered position in the subscription's record holds the spool's data. It moves to the
  ``start`` that ``latestOffset`` is given, which is always the end of a batch in the commit
  log, and is what ``initialOffset`` answers: also after a crash before the first commit.
- A driver-side exception ends the query, so what may pass is tried again here.
- With nothing new, ``latestOffset`` waits a while: Spark asks again every 10 ms otherwise.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pgsluice.errors import ConfigError, SourceUnreachable, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.in_force import refuse_other_options
from pgsluice.spark.options import SourceOptions
from pgsluice.spark.reading import ChangePartition, RowReader, plan
from pgsluice.spark.schema import TASK_COLUMN
from pgsluice.spool import Owner, RecordStore, SegmentInfo, SpoolReader, SubscriptionRecord

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pgsluice.spark.keeper import CaptureKeeper

T = TypeVar("T")
Offset = dict[str, str]

LONG_POLL_S = 0.5
POLL_S = 0.02
ATTEMPTS = 5
FIRST_PAUSE_S = 0.1


def offset_of(lsn: Lsn) -> Offset:
    """An offset as Spark keeps it."""
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


class PgoutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans a query's batches from the spool, and reads their partitions in tasks.

    Args:
        options: with a subscription.
        schema: what Spark was told.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        assert options.subscription is not None
        self._options = options
        self._subscription = options.subscription
        self._rows = None if options.task_mode else RowReader.of(options, schema)
        # Of the planning process alone; made there, so that the object pickles.
        self._spool: SpoolReader | None = None
        self._until: Lsn | None = None
        self._start: Lsn | None = None
        self._keeper: CaptureKeeper | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as below
        """The registered position; a new subscription is registered first."""
        self._begin()
        return offset_of(_again(self._register).position)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The rows that a batch should have; bytes are limited beside it."""
        return ReadMaxRows(self._options.max_rows_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the next batch ends; ``start`` when there is nothing new for a while.

        Raises:
            SpoolHole: what follows ``start`` is not in the spool any more.
        """
        self._begin()
        begin = lsn_of(start)
        if self._options.task_mode:
            # Work is planned from each table's own position. A checkpoint that was restored,
            # or whose subscription was let go, may be older than all that is still needed.
            begin = max(begin, _again(self._reader().start))
        _again(lambda: self._hold(begin))
        infos = _again(lambda: self._waiting(begin))
        if not infos and self._until is None and self._wait_for_news(begin):
            infos = _again(lambda: self._waiting(begin))
        self._look_after_capture()
        end = _again(lambda: self._limited(infos, limit))
        return offset_of(max(begin, end))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: what the source had flushed, or what the spool has."""
        dsn = self._options.dsn
        # Asked first: a capture that is started now then ends behind it.
        flushed = None if dsn is None else _again(lambda: _flushed(dsn))
        self._begin(once=True)
        self._until = _again(lambda: self._end_of_now(flushed))

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """How far the query is behind; Spark shows it in the query's progress."""
        reader = self._reader()
        frontier, position = _again(reader.frontier), _again(reader.position)
        start = position if self._start is None else self._start
        # Between the last commit and the frontier there is nothing to read.
        lag = frontier - start if position > start else 0
        return {
            "lsn": str(position),
            "frontier": str(frontier),
            "lag_bytes": str(lag),
            "slot": reader.spool.identity.slot,
        }

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
                path=str(self._options.spool),
            )
        if through == begin:
            return []
        if self._options.task_mode:
            from pgsluice.spark.tasks import plan_payloads

            payloads = _again(
                lambda: plan_payloads(self._options.spool, self._subscription, begin, through)
            )
            return [InputPartition(payload) for payload in payloads]
        infos = _again(lambda: self._reader().segments(begin, through))
        return list(plan(infos, begin, through))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's rows; runs in a task."""
        if self._rows is None:
            return iter([task_batch(partition.value)])
        assert isinstance(partition, ChangePartition)
        return self._rows.read(partition)

    def stop(self) -> None:
        """The query ended: a capture of its own ends with it."""
        if self._keeper is not None:
            self._keeper.close()

    def _begin(self, *, once: bool = False) -> None:
        """What the first call in the planning process finds undone."""
        _stop_on_sigterm()
        if self._options.dsn is None:
            refuse_other_options(self._options, self._reader().spool.identity)
        elif self._keeper is None and not self._options.task_mode:
            from pgsluice.spark.keeper import CaptureKeeper

            self._keeper = CaptureKeeper(self._options, once=once)
            self._keeper.wait_for_spool()

    def _look_after_capture(self) -> None:
        if self._keeper is not None:
            self._keeper.look_after()

    def _reader(self) -> SpoolReader:
        if self._spool is None:
            self._spool = SpoolReader(self._options.spool)
        return self._spool

    def _register(self) -> SubscriptionRecord:
        reader = self._reader()
        known = reader.spool.subscription(self._subscription)
        if known is not None:
            self._check_owner(known)
            return known
        if self._options.task_mode:
            raise SpoolError(
                f"subscription {self._subscription} is not registered in {reader.spool.path}",
                path=str(reader.spool.path),
            )
        # The spool's first subscription gets all there is; a later one what comes from now on:
        # past the last position. After a promotion commits may come before the frontier of now.
        is_first = not reader.spool.subscriptions()
        position = reader.start() if is_first else reader.position()
        record = SubscriptionRecord(
            self._subscription,
            Owner.SOURCE,
            mode="changelog",
            sink="",
            registered=position,
            position=position,
        )
        RecordStore.create(reader.spool.path, record)
        return record

    def _check_owner(self, record: SubscriptionRecord) -> None:
        is_ours = record.owner is Owner.SOURCE
        if is_ours == self._options.task_mode:
            raise ConfigError(
                f"subscription {record.name} belongs to "
                + ("a query of this source" if is_ours else "a configuration of pgsluice"),
                hint="choose another name",
                option="subscription",
            )

    def _hold(self, start: Lsn) -> None:
        """Let go of what lies before ``start``, and hold what follows."""
        self._start = start
        if self._options.task_mode:
            return  # the subscription's driver keeps its record
        record = self._register()
        if record.position != start:
            self._reader().segments(start, start)  # fails when it is not there any more
            store = RecordStore.open(self._options.spool, self._subscription)
            store.save(replace(store.record, position=start))

    def _wait_for_news(self, start: Lsn) -> bool:
        """Wait a while for a segment past ``start``; looking costs next to nothing."""
        deadline = time.monotonic() + LONG_POLL_S
        while time.monotonic() < deadline:
            self._look_after_capture()
            chain = _again(self._reader().all_segments)
            if chain and chain[-1].end > start:
                return True
            time.sleep(POLL_S)
        return False

    def _waiting(self, start: Lsn) -> list[SegmentInfo]:
        """The segments past ``start``, up to the query's fixed end if it has one."""
        infos = self._reader().segments(start)
        if self._until is None:
            return infos
        return [info for info in infos if info.end <= self._until]

    def _limited(self, infos: Sequence[SegmentInfo], limit: ReadLimit) -> Lsn:
        """The end of the last segment that the limits allow: at least the first one's."""
        rows, size, files = self._limits(limit)
        end = Lsn(0)
        for info in infos:
            rows -= info.header.changes
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
                return limit.max_rows, self._options.max_bytes_per_batch, math.inf
            case _:
                return self._options.max_rows_per_batch, self._options.max_bytes_per_batch, math.inf

    def _end_of_now(self, flushed: Lsn | None) -> Lsn:
        reader = self._reader()
        if flushed is None:
            return reader.position()
        while reader.frontier() < flushed:
            if self._keeper is not None:
                self._keeper.require()
            time.sleep(POLL_S)
        # Whole segments: the end is the first one's that reaches the source's position.
        ends = (info.end for info in reader.all_segments())
        return next((end for end in ends if end >= flushed), reader.position())


def task_batch(payload: bytes) -> pa.RecordBatch:
    """Task mode's one row."""
    return pa.record_batch([pa.array([payload], pa.binary())], names=[TASK_COLUMN])


def _flushed(dsn: str) -> Lsn:
    """How far the server is.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be asked.
    """
    from pgsluice.catalog import flush_lsn
    from pgsluice.replication import connect_sql, source_errors

    with connect_sql(dsn) as connection, source_errors("asking how far the server is"):
        return flush_lsn(connection)


def _again(call: Callable[[], T]) -> T:
    """Call, and again after a pause when what failed may pass: Spark itself would not."""
    for attempt in range(1, ATTEMPTS):
        try:
            return call()
        except (OSError, SourceUnreachable, SpoolError) as error:
            if not _may_pass(error):
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    return call()


def _may_pass(error: Exception) -> bool:
    """A server that is away, a disk that stumbled; a hole in the spool does not heal."""
    if isinstance(error, SpoolError):
        return type(error) is SpoolError and isinstance(error.__cause__, OSError)
    return True


def _stop_on_sigterm() -> None:
    """Spark ends the runner by SIGTERM and calls nothing; let ``stop`` and atexit run."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)
