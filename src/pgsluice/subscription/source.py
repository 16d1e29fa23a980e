"""The data source of a subscription's streaming query: it says where each batch ends.

The query's driver registers it in its session under a private format name; it is no part of
``format("pgoutput")``. Batches end where segments end, as for every reader of a spool, or at a
barrier (:mod:`pgsluice.subscription.barrier`). The driver plans what a batch holds, from each
table's own position (:mod:`pgsluice.subscription.planning`), so the batch's start does not matter:
after a checkpoint was restored or lost, nothing is applied twice or skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, InputPartition

from pgsluice.errors import ConfigError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spark.spool_stream import LONG_POLL_S, SpoolStreamReader
from pgsluice.spool import Owner, SubscriptionRecord
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.barrier import HOLD_S, BarrierWait

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "pgsluice_batches"
END_COLUMN = "end"


class BatchSource(DataSource):
    """Makes the reader; its options are those of :func:`read_batches`."""

    @classmethod
    def name(cls) -> str:
        """The private format name."""
        return FORMAT

    def schema(self) -> str:
        """One column: the LSN at which the batch ends, as text."""
        return f"{END_COLUMN} STRING"

    def streamReader(self, schema: StructType) -> BatchReader:  # noqa: N802 - Spark's name
        """The reader of one query."""
        options = self.options
        return BatchReader(
            Path(options["spool"]),
            options["subscription"],
            max_rows=int(options["max_rows"]),
            max_bytes=int(options["max_bytes"]),
        )


def read_batches(
    spark: SparkSession, spool: Path, subscription: str, *, max_rows: int, max_bytes: int
) -> DataFrame:
    """The streaming DataFrame of a subscription's batches: each has one row.

    Args:
        spark: the session of the query; the source is registered in it.
        subscription: a subscription that a configuration has registered.
        max_rows: rows after which a batch takes no further segment.
        max_bytes: bytes after which a batch takes no further segment.
    """
    spark.dataSource.register(BatchSource)
    return (
        spark.readStream.format(FORMAT)
        .option("spool", str(spool.absolute()))
        .option("subscription", subscription)
        .option("max_rows", str(max_rows))
        .option("max_bytes", str(max_bytes))
        .load()
    )


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

    def partitions_between(self, start: Lsn, end: Lsn) -> Sequence[InputPartition]:
        """One partition, which names the batch's end."""
        return [InputPartition(str(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's one row; runs in a task."""
        import pyarrow as pa

        yield pa.record_batch([pa.array([partition.value], pa.string())], names=[END_COLUMN])
