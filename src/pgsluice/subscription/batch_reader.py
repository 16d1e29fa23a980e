"""The reader of a subscription's streaming query: it divides the spool into batches.

It runs in the query's planning process (:mod:`pgsluice.subscription.source` is its data source).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from pgsluice.errors import ConfigError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.retry import retry_transient
from pgsluice.spark.source.spool_stream import (
    LONG_POLL_S,
    Offset,
    SpoolStreamReader,
    lsn_of,
    offset_of,
)
from pgsluice.spool import Owner, SubscriptionRecord
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.records.copy_status import amount_json, read_copy_status
from pgsluice.subscription.barrier import HOLD_S, BarrierWait
from pgsluice.subscription.source import END_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(SpoolStreamReader):
    """Divides a spool into a subscription's batches; the subscription's driver keeps its record.

    Args:
        subscription: whose batches they are.
        max_rows: rows after which a batch takes no further segment.
        max_bytes: bytes after which a batch takes no further segment.
    """

    def __init__(self, spool: Path, subscription: str, *, max_rows: int, max_bytes: int) -> None:
        super().__init__(spool, max_rows=max_rows, max_bytes=max_bytes)
        self._subscription = subscription
        self._barrier = BarrierWait(subscription_folder(spool, subscription))

    def registered_position(self) -> Lsn:
        """The position of the subscription's record.

        Raises:
            SpoolError: the subscription is not registered.
            ConfigError: a query of the pgoutput source owns the name.
        """
        return self._record().position

    def _record(self) -> SubscriptionRecord:
        # Read again only if the file has changed, and then only its new lines.
        record = self.reader().spool.subscription(self._subscription)
        if record is None:
            raise SpoolError(
                f"subscription {self._subscription} is not registered in {self._path}",
                path=str(self._path),
            )
        if record.owner is Owner.SOURCE:
            raise ConfigError(
                f"subscription {record.name} belongs to a query of this source",
                hint="choose another name",
                option="subscription",
            )
        return record

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the query is behind, and how far the copies are, for Spark's progress."""
        facts: dict[str, Any] = {**(super().reportLatestOffset() or {})}
        record = retry_transient(self._record)
        copies = read_copy_status(self._path, record)
        if copies.all_tables:
            facts["copies"] = {
                "tables": copies.done,
                "all_tables": copies.all_tables,
                **amount_json(copies.amount),
                "by_table": {
                    record.tables[oid].title: amount_json(amount)
                    for oid, amount in copies.tables.items()
                    if amount.all_ranges > 1
                },
            }
        return facts

    def hold(self, start: Lsn) -> Lsn:
        """Read from the spool's first segment at the earliest.

        A checkpoint that was restored, or whose subscription lost its hold on the spool, may
        be older than what the spool still has.
        """
        return max(start, self.reader().start())

    def end_at_barrier(self, start: Lsn, end: Lsn) -> Lsn:
        """Where a barrier ends the batch.

        A query that ends by itself would end where no batch begins, so it waits.
        """
        wait_s = LONG_POLL_S if self._available_now is None else HOLD_S
        return self._barrier.limit(start, end, wait_s)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch; none if its changes have been applied without the query.

        The first batch of a checkpoint begins at the record's position. If the query was killed
        when that batch was planned, the record has passed its end when it is planned again.
        """
        return super().partitions(offset_of(min(lsn_of(start), lsn_of(end))), end)

    def partitions_between(self, start: Lsn, end: Lsn) -> Sequence[InputPartition]:
        """One partition, which names the batch's end."""
        return [InputPartition(str(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's one row; runs in a task."""
        import pyarrow as pa

        yield pa.record_batch([pa.array([partition.value], pa.string())], names=[END_COLUMN])
