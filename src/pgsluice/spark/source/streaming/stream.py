"""``spark.readStream.format("pgoutput")``: a query with its own subscription.

Because of the position in the subscription's record, the spool keeps later data. Spark passes the
end of the last committed batch to ``latestOffset`` as ``start``; the position moves there.
``initialOffset`` returns the position, also after a crash before the first batch was committed.

One process for each query plans its batches. Tasks get copies of the reader that were pickled
directly after ``__init__``; such a copy only reads partitions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pgsluice.errors import PgsluiceError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.api import HAS_READ_LIMITS, SupportsTriggerAvailableNow
from pgsluice.spark.source.lookup import warn_of_unknown_exclusions
from pgsluice.spark.source.options import SourceOptions
from pgsluice.spark.source.reading import ChangePartition, RowReader, plan
from pgsluice.spark.source.snapshot.start import (
    OVER,
    RowsPartition,
    SnapshotStart,
    Stage,
    StagePartition,
)
from pgsluice.spark.source.streaming.batch_ends import (
    Offset,
    end_of_batch,
    lag_s,
    limits_of,
    lsn_of,
)
from pgsluice.spark.source.streaming.planning_process import exit_on_sigterm, retry_transient
from pgsluice.spark.source.streaming.registration import (
    Registration,
    begins_with_rows,
    planned_of,
    tag_of,
)
from pgsluice.spark.source.walsender_options import refuse_other_options
from pgsluice.spool import SegmentInfo, SpoolIdentity, SpoolReader, SubscriptionRecord
from pgsluice.spool.identity import read_identity
from pgsluice.spool.layout import SEGMENTS
from pgsluice.spool.lock import FileLock, subscription_lock
from pgsluice.spool.notices import FolderNotices
from pgsluice.spool.segments.batch_limits import BatchLimits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from pgsluice.spark.source.streaming.keeper import CaptureKeeper

_LOG = logging.getLogger("pgsluice.spark")
_ONE_BATCH = (
    "this version of Spark does not say that a query runs with availableNow: a start of such a "
    "query reads one batch of at most max_rows_per_batch. If the stream starts with the rows of "
    "its table, the first start has no rows, it only writes them into the spool; the changes come "
    "in a start after all of these rows"
)
_LOCK_S = 10.0
_LONG_POLL_S = 1.0


class PgoutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans a query's batches from the spool, and reads their partitions in tasks.

    Args:
        options: the query's options, with a subscription.
        gives_start: Spark says where a batch starts, and which limit it has.
        lock_s: how long to wait for the planning process of a stopped query to end, in seconds.
        long_poll_s: how long to wait for new data, in seconds, before a query hears of none.
            Without this wait, Spark would ask every 10 ms.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        gives_start: bool = HAS_READ_LIMITS,
        lock_s: float = _LOCK_S,
        long_poll_s: float = _LONG_POLL_S,
    ) -> None:
        assert options.subscription is not None
        self.options = options
        self._gives_start = gives_start
        self._lock_s = lock_s
        self._long_poll_s = long_poll_s
        self._subscription = options.subscription
        self._rows = RowReader.of(options, schema)
        self._snapshot = SnapshotStart(options, self._rows.declared, self._identity)
        self._registration = Registration(options, self.reader)
        # Set only in the planning process.
        self._spool: SpoolReader | None = None
        self._notices: FolderNotices | None = None
        self._lock: FileLock | None = None
        self._keeper: CaptureKeeper | None = None
        self._record: SubscriptionRecord | None = None
        self._flushed: Lsn | None = None
        self._available_now: Lsn | None = None
        self._end: Lsn | None = None
        self._planned: Offset | None = None

    # Called by Spark in the planning process.

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, like those below
        """The registered position; a new subscription is registered first. A stream may have to
        deliver the rows of its table before changes."""
        self._begin()
        self._record = retry_transient(self._registration.begin)
        offset = self._offset(self._record.position)
        if "snapshot" in offset:
            offset["snapshot"] = str(Stage())
        self._note_planned(offset)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit on a batch's rows; its bytes are also limited."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_rows_per_batch)

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """The end of the next batch; ``start`` if there was no new data for a while.

        Rows that are still to be delivered come before changes.

        Args:
            start, limit: None from Spark 4.0 and 4.1: the end of the last batch, and the limits
                of the query's options.

        Raises:
            SpoolHole: the spool has dropped data after ``start``.
            ConfigError: the checkpoint does not belong to this subscription.
        """
        self._begin()
        before = self._last_planned() if start is None else start
        retry_transient(lambda: self._check(before))
        given, stage = lsn_of(before), _stage_of(before)
        limits = limits_of(limit, self.options.max_rows_per_batch, self.options.max_bytes_per_batch)
        if stage.is_over:
            return self._offset(self._end_of_changes(given, limits))
        self._look_after_capture()
        tag = before["subscription"]
        position, after = retry_transient(lambda: self._snapshot.next(given, stage, tag, limits))
        return {**before, "lsn": str(position), "snapshot": str(after)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the position at which a query with availableNow ends."""
        self._begin(once=True)
        self._available_now = retry_transient(self._end_of_available_now)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch, for changes or for the initial rows.

        Raises:
            SpoolError: the end is before the start.
            SpoolHole: the spool lacks a part of the range.
        """
        self._note_planned(end)
        self._begin()
        retry_transient(lambda: self._check(end))
        before, after = _stage_of(start), _stage_of(end)
        if not before.is_over:
            tag = end["subscription"]
            return retry_transient(lambda: self._snapshot.partitions(before, after, tag))
        begin, through = lsn_of(start), lsn_of(end)
        if through < begin:
            raise SpoolError(
                f"the query's batch would end at {through}, before its start at {begin}: the spool "
                "is not the one that the query has read so far",
                hint="set the option spool to the spool that this checkpoint was made with",
                path=str(self.options.spool),
            )
        if through == begin:
            return []
        return retry_transient(lambda: plan(self.reader().segments(begin, through), begin, through))

    def commit(self, end: Offset) -> None:
        """Move the registered position, if Spark does not say in ``latestOffset`` what it has
        committed: no batch starts before ``end``."""
        if not self._gives_start and _stage_of(end).is_over:
            retry_transient(lambda: self._check(end))
            retry_transient(lambda: self._hold(lsn_of(end)))

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
            "lag_seconds": f"{retry_transient(lambda: lag_s(reader, end)):.1f}",
            "slot": reader.spool.identity.slot,
        }

    def stop(self) -> None:
        """End the query's own capture, and release the subscription for other queries."""
        self._snapshot.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._lock is not None:
            self._lock.release()

    # Called by Spark in tasks.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a partition of the query, as Spark's task reads them."""
        if isinstance(partition, ChangePartition):
            return self._rows.read(partition)
        assert isinstance(partition, StagePartition | RowsPartition)
        return self._snapshot.read(partition)

    # The subscription.

    def reader(self) -> SpoolReader:
        """The spool's reader, opened once in the planning process."""
        if self._spool is None:
            self._spool = SpoolReader(self.options.spool)
        return self._spool

    def _begin(self, *, once: bool = False) -> None:
        """On the first call: check the walsender's options, or start the query's own capture, and
        lock the subscription.

        Args:
            once: the query ends by itself at the current position.

        Raises:
            SpoolBusy: another query reads the subscription.
            ConfigError: the subscription is not for this query.
        """
        exit_on_sigterm()
        dsn = self.options.dsn
        if dsn is not None and self._flushed is None and (once or not self._gives_start):
            # Ask before capture starts: it then reads at least up to this LSN.
            self._flushed = retry_transient(lambda: _flush_lsn(dsn))
        if dsn is None:
            refuse_other_options(self.options, self.reader().spool.identity)
        elif self._keeper is None:
            from pgsluice.spark.source.streaming.keeper import CaptureKeeper

            self._keeper = CaptureKeeper(self.options, once=once)
            retry_transient(self._keeper.publish)
            self._keeper.wait_for_spool()
            retry_transient(self._keeper.await_publications)
        if self._lock is None:
            self._registration.check_name()
            # Two queries would drop from the spool what the other one still has to read.
            lock = subscription_lock(self.options.spool, self._subscription, self._lock_s)
            lock.acquire()
            self._lock = lock
            if not self._gives_start:
                _LOG.warning(_ONE_BATCH)
            warn_of_unknown_exclusions(self.options)

    def _identity(self) -> SpoolIdentity:
        identity = read_identity(self.options.spool)
        assert identity is not None  # of a spool that the query has registered with
        return identity

    def _check(self, offset: Offset) -> None:
        """Refuse an offset of another subscription, or of another registration of it."""
        self._record = self._registration.of_checkpoint(offset.get("subscription"))

    def _offset(self, lsn: Lsn) -> Offset:
        """An LSN in the form of this query's checkpoint, which has the registration."""
        offset, record = {"lsn": str(lsn)}, self._record
        if record is not None and (tag := tag_of(record)) is not None:
            offset["subscription"] = tag
            if begins_with_rows(record):
                offset["snapshot"] = str(OVER)
        return offset

    def _hold(self, start: Lsn) -> None:
        """Move the registered position to ``start``: the spool may drop earlier data."""
        assert self._record is not None
        has_note = self._gives_start and planned_of(self._record) is not None
        if self._record.position == start and not has_note:
            return
        if self.reader().frontier() < start:
            return  # capture has not come as far as the snapshot yet
        self._snapshot.clear()  # its rows are delivered
        self.reader().segments(start, start)  # raises if the spool has dropped it
        self._registration.move(self._record, start, keeps_note=not self._gives_start)

    def _last_planned(self) -> Offset:
        """The end of the last planned batch, from memory or from the subscription's record: for
        versions of Spark that do not say where a batch starts.

        Raises:
            ConfigError: a version of Spark that says it has read the subscription.
        """
        if self._planned is None:
            self._planned = retry_transient(self._registration.planned)
        return self._planned or self.initialOffset()

    def _note_planned(self, end: Offset) -> None:
        """Note durably where the next batch starts, if Spark will not say it."""
        if self._gives_start:
            return
        if end != self._planned:
            retry_transient(lambda: self._registration.note_planned(end))
        self._planned = end

    # Waits for changes.

    def _end_of_changes(self, start: Lsn, limits: BatchLimits) -> Lsn:
        """The end of the batch of changes after ``start``, which is not read again."""
        if self._gives_start:
            retry_transient(lambda: self._hold(start))
        else:
            retry_transient(lambda: self._wait_for_batch(start))
        infos = retry_transient(lambda: self._pending_segments(start))
        if not infos and self._available_now is None and self._wait_for_segment(start):
            infos = retry_transient(lambda: self._pending_segments(start))
        self._look_after_capture()
        end = retry_transient(lambda: end_of_batch(self.reader(), start, infos, limits))
        self._end = max(start, end)
        return self._end

    def _pending_segments(self, start: Lsn) -> list[SegmentInfo]:
        """The segments after ``start``, up to the query's fixed end if it has one."""
        infos = self.reader().segments(start)
        if self._available_now is None:
            return infos
        return [info for info in infos if info.end <= self._available_now]

    def _wait_for_segment(self, start: Lsn) -> bool:
        """Wait a while for a segment after ``start``."""
        if self._notices is None:
            self._notices = FolderNotices(self.options.spool / SEGMENTS)
        deadline = time.monotonic() + self._long_poll_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._look_after_capture()
            chain = retry_transient(self.reader().all_segments)
            if chain and chain[-1].end > start:
                return True
            self._notices.wait(left_s)
        return False

    def _look_after_capture(self) -> None:
        """Keep the query's own capture process running, if it has one."""
        if self._keeper is not None:
            self._keeper.look_after()

    def _wait_for_batch(self, start: Lsn) -> None:
        """Wait until the spool has the changes that the server had when the process started, or a
        full batch of them: with availableNow, this may be the only batch of the process."""

        def is_full() -> bool:
            infos = self.reader().segments(start)
            return (
                sum(info.header.counts.changes for info in infos) >= self.options.max_rows_per_batch
                or sum(info.size_bytes for info in infos) >= self.options.max_bytes_per_batch
            )

        self._wait_until_received(is_full)

    def _end_of_available_now(self) -> Lsn:
        """The end of the first segment that reaches the server's flush LSN; without the option
        ``dsn``, the spool's current position."""
        reader, flushed = self.reader(), self._flushed
        if flushed is None:
            return reader.position()
        self._wait_until_received()
        ends = (info.end for info in reader.all_segments())
        return next((end for end in ends if end >= flushed), reader.position())

    def _wait_until_received(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until the spool has the changes that the server had when the process started.

        Args:
            is_enough: polled; true: the spool has enough of them.
        """
        reader, flushed = self.reader(), self._flushed
        if flushed is None or self._keeper is None:  # both come with the option dsn
            return
        self._keeper.wait_until(
            lambda: reader.frontier() >= flushed or is_enough(),
            f"the changes up to {flushed}, where the server was at the query's start",
        )


def _stage_of(offset: Offset) -> Stage:
    """The stream's progress with its initial rows; most streams have none."""
    text = offset.get("snapshot")
    return OVER if text is None else Stage.of(text)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Replaces a reader that cannot be created; raises the error when Spark uses it.

    Spark's runner hides errors of ``streamReader``: it then tries to stop a reader that does not
    exist, and reports that error instead.
    """

    def __init__(self, error: PgsluiceError) -> None:
        self._error = error

    def _refuse(self, *_given: Any, **_named: Any) -> Any:
        raise self._error

    prepareForTriggerAvailableNow = getDefaultReadLimit = initialOffset = _refuse  # noqa: N815
    latestOffset = partitions = read = _refuse  # noqa: N815 - Spark's names


def _flush_lsn(dsn: str) -> Lsn:
    """The server's flush LSN.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be queried.
    """
    from pgsluice.catalog.server import flush_lsn
    from pgsluice.replication import connect_sql

    with connect_sql(dsn, "asking for the server's flush LSN") as connection:
        return flush_lsn(connection)
