"""``spark.readStream.format("pgoutput")``: a query with its own subscription.

Because of the position in the subscription's record, the spool keeps later data. Spark passes the
end of the last committed batch to ``latestOffset`` as ``start``; the position moves there.
``initialOffset`` returns the position, also after a crash before the first batch was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pgsluice.errors import ConfigError, PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.api import HAS_READ_LIMITS, ReadLimit, SupportsTriggerAvailableNow
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
from pgsluice.spark.source.streaming.registration import (
    Registration,
    begins_with_rows,
    planned_of,
    tag_of,
)
from pgsluice.spark.source.streaming.retry import retry_transient
from pgsluice.spark.source.streaming.spool_stream import (
    LONG_POLL_S,
    POLL_S,
    Offset,
    SpoolStreamReader,
    lsn_of,
)
from pgsluice.spark.source.walsender_options import refuse_other_options
from pgsluice.spool import SegmentInfo, SpoolIdentity, SubscriptionRecord
from pgsluice.spool.identity import read_identity
from pgsluice.spool.lock import FileLock, subscription_lock
from pgsluice.spool.segments.scan import change_positions

if TYPE_CHECKING:
    import pyarrow as pa
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


class PgoutputStreamReader(SpoolStreamReader):
    """Plans a query's batches from the spool, and reads their partitions in tasks.

    Args:
        options: the query's options, with a subscription.
        gives_start: Spark says where a batch starts, and which limit it has.
        lock_s: how long to wait for the planning process of a stopped query to end.
        long_poll_s: how long to wait for new data before a query hears of none.

    Attributes:
        options: see above.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        gives_start: bool = HAS_READ_LIMITS,
        lock_s: float = _LOCK_S,
        long_poll_s: float = LONG_POLL_S,
    ) -> None:
        assert options.subscription is not None
        super().__init__(
            options.spool,
            max_rows=options.max_rows_per_batch,
            max_bytes=options.max_bytes_per_batch,
            gives_start=gives_start,
            long_poll_s=long_poll_s,
        )
        self.options = options
        self._lock_s = lock_s
        self._subscription = options.subscription
        self._rows = RowReader.of(options, schema)
        self._snapshot = SnapshotStart(options, self._rows.declared, self._identity)
        # Set only in the planning process, like the spool's reader.
        self._record: SubscriptionRecord | None = None
        self._lock: FileLock | None = None
        self._keeper: CaptureKeeper | None = None
        self._flushed: Lsn | None = None
        self._planned: Offset | None = None

    def registered_position(self) -> Lsn:
        """The registered position; a new subscription is registered first."""
        self._record = self._registration().begin()
        return self._record.position

    def tag(self) -> Offset:
        """The registration, which ties the checkpoint to the subscription."""
        tag = None if self._record is None else tag_of(self._record)
        if self._record is None or tag is None:
            return {}
        own = {"subscription": tag}
        return {**own, "snapshot": str(OVER)} if begins_with_rows(self._record) else own

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, like those below
        """The registered position; a stream may first have to deliver the rows of its table."""
        offset = super().initialOffset()
        if "snapshot" in offset:
            offset["snapshot"] = str(Stage())
        self._note_planned(offset)
        return offset

    def last_planned(self) -> Offset:
        """The end of the last planned batch, from memory or from the subscription's record.

        Raises:
            ConfigError: a version of Spark that says where a batch starts has read the
                subscription.
        """
        if self._planned is None:
            record = retry_transient(self._registration().check_name)
            if record is None or (planned := planned_of(record)) is None:
                has_read = record is not None and record.position != record.registered
                if record is not None and has_read:
                    raise ConfigError(
                        f"Spark 4.2 or newer has read subscription {record.name}, and this older "
                        "Spark cannot continue its batches",
                        hint="continue the query with Spark 4.2 or newer, or start it from scratch "
                        "with another name in the option subscription and another "
                        "checkpointLocation",
                        option="subscription",
                    )
                return self.initialOffset()
            self._planned = planned
        return self._planned

    def _note_planned(self, end: Offset) -> None:
        """Note durably where the next batch starts, if Spark will not say it."""
        if self._gives_start:
            return
        if end != self._planned:
            retry_transient(lambda: self._registration().note_planned(end))
        self._planned = end

    def commit(self, end: Offset) -> None:
        """Move the registered position, if Spark does not say in ``latestOffset`` what it has
        committed: no batch starts before ``end``."""
        if self._gives_start or not _stage_of(end).is_over:
            return
        retry_transient(lambda: self.check(end))
        retry_transient(lambda: self.hold(lsn_of(end)))

    def next_offset(self, start: Offset, limit: ReadLimit | None) -> Offset:
        """The end of the batch after ``start``; rows that are still to be delivered come first."""
        stage = _stage_of(start)
        if stage.is_over:
            if not self._gives_start:
                retry_transient(lambda: self._wait_for_batch(lsn_of(start)))
            return super().next_offset(start, limit)
        retry_transient(lambda: self.check(start))
        self.look_after_capture()
        position, after = retry_transient(
            lambda: self._snapshot.next(
                lsn_of(start), stage, start["subscription"], self._limits(limit)
            )
        )
        return {**start, "lsn": str(position), "snapshot": str(after)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch, for changes or for the initial rows."""
        self._note_planned(end)
        before, after = _stage_of(start), _stage_of(end)
        if before.is_over:
            return super().partitions(start, end)
        self.begin()
        retry_transient(lambda: self.check(end))
        return retry_transient(
            lambda: self._snapshot.partitions(before, after, end["subscription"])
        )

    def check(self, offset: Offset) -> None:
        """Refuse an offset of another subscription, or of another registration of it.

        Raises:
            ConfigError: the checkpoint does not belong to this subscription.
        """
        self._record = self._registration().of_checkpoint(offset.get("subscription"))

    def hold(self, start: Lsn) -> Lsn:
        """Move the registered position to ``start``: the spool may drop earlier data."""
        assert self._record is not None
        has_note = self._gives_start and planned_of(self._record) is not None
        if self._record.position != start or has_note:
            if self.reader().frontier() < start:
                return start  # capture has not come as far as the snapshot yet
            self._snapshot.clear()  # its rows are delivered
            self.reader().segments(start, start)  # raises if the spool has dropped it
            self._registration().move(self._record, start, keeps_note=not self._gives_start)
        return start

    def partitions_between(self, start: Lsn, end: Lsn) -> Sequence[InputPartition]:
        """The tasks of a batch; small neighbouring segments share one."""
        return plan(self.reader().segments(start, end), start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's rows; runs in a task."""
        if isinstance(partition, ChangePartition):
            return self._rows.read(partition)
        assert isinstance(partition, StagePartition | RowsPartition)
        return self._snapshot.read(partition)

    def stop(self) -> None:
        """End the query's own capture, and release the subscription for other queries."""
        self._snapshot.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._lock is not None:
            self._lock.release()

    def begin(self, *, once: bool = False) -> None:
        """Check the walsender's options, or start the query's own capture.

        Raises:
            SpoolBusy: another query reads the subscription.
            ConfigError: the subscription is not for this query.
        """
        super().begin(once=once)
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
            retry_transient(self._keeper.connect_behind_publications)
        if self._lock is None:
            self._registration().check_name()
            # Two queries would drop from the spool what the other one still has to read.
            lock = subscription_lock(self._path, self._subscription, self._lock_s)
            lock.acquire()
            self._lock = lock
            if not self._gives_start:
                _LOG.warning(_ONE_BATCH)
            warn_of_unknown_exclusions(self.options)

    def _identity(self) -> SpoolIdentity:
        identity = read_identity(self._path)
        assert identity is not None  # of a spool that the query has registered with
        return identity

    def _registration(self) -> Registration:
        return Registration(self.options, self.reader)

    def end_inside(self, info: SegmentInfo, start: Lsn, rows: int, *, is_first: bool) -> Lsn:
        """The end of the segment's last transaction whose rows fit into the batch."""
        if info.is_reference:  # one transaction
            return info.end if is_first else start
        (view,) = self.reader().views(info, start)
        positions = change_positions(view.block)
        if len(positions) <= rows:
            return info.end
        past = int(positions[rows])  # of the transaction that has the first row too many
        before = positions[: np.searchsorted(positions, past)]
        if len(before):
            return Lsn(int(before[-1]))
        return Lsn(past) if is_first else start

    def look_after_capture(self) -> None:
        """Keep the query's own capture process running, if it has one."""
        if self._keeper is not None:
            self._keeper.look_after()

    def _wait_for_batch(self, start: Lsn) -> None:
        """Wait until the spool has the changes that the server had when the process started, or a
        full batch of them: with availableNow, this may be the only batch of the process."""

        def is_full() -> bool:
            infos = self.reader().segments(start)
            return (
                sum(info.header.counts.changes for info in infos) >= self._max_rows
                or sum(info.size_bytes for info in infos) >= self._max_bytes
            )

        self._wait_until_received(is_full)

    def end_of_available_now(self) -> Lsn:
        """The end of the first segment that reaches the server's flush LSN."""
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
            POLL_S,
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

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error

    def initialOffset(self) -> Offset:  # noqa: N802
        """Raise the error."""
        raise self._error

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Raise the error."""
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


def _flush_lsn(dsn: str) -> Lsn:
    """The server's flush LSN.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be queried.
    """
    from pgsluice.catalog.server import flush_lsn
    from pgsluice.replication import connect_sql, source_errors

    with connect_sql(dsn) as connection, source_errors("asking for the server's flush LSN"):
        return flush_lsn(connection)
