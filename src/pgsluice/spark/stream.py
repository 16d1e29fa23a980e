"""``spark.readStream.format("pgoutput")``: a query with its own subscription.

The position in the subscription's record keeps the spool from dropping later data. Spark passes
the end of the last committed batch to ``latestOffset`` as ``start``; the position moves there.
``initialOffset`` returns the position, also after a crash before the first batch was committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.options import SourceOptions
from pgsluice.spark.reading import ChangePartition, RowReader, plan
from pgsluice.spark.retry import retry_transient
from pgsluice.spark.spool_stream import POLL_S, SpoolStreamReader
from pgsluice.spark.walsender_options import refuse_other_options
from pgsluice.spool import Owner, RecordStore, SubscriptionRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pgsluice.spark.keeper import CaptureKeeper


class PgoutputStreamReader(SpoolStreamReader):
    """Plans a query's batches from the spool, and reads their partitions in tasks.

    Args:
        options: the query's options, with a subscription.
        schema: the query's schema.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        assert options.subscription is not None
        super().__init__(
            options.spool,
            max_rows=options.max_rows_per_batch,
            max_bytes=options.max_bytes_per_batch,
        )
        self._options = options
        self._subscription = options.subscription
        self._rows = RowReader.of(options, schema)
        # Set only in the planning process, like the spool's reader.
        self._keeper: CaptureKeeper | None = None
        self._flushed: Lsn | None = None

    def registered_position(self) -> Lsn:
        """The registered position; a new subscription is registered first."""
        return self._record().position

    def hold(self, start: Lsn) -> Lsn:
        """Move the registered position to ``start``: the spool may drop what lies before it."""
        record = self._record()
        if record.position != start:
            self.reader().segments(start, start)  # raises if the spool has dropped it
            store = RecordStore.open(self._path, self._subscription)
            store.save(replace(store.record, position=start))
        return start

    def partitions_between(self, start: Lsn, end: Lsn) -> Sequence[InputPartition]:
        """The tasks of a batch; small neighbouring segments share one."""
        return plan(self.reader().segments(start, end), start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's rows; runs in a task."""
        assert isinstance(partition, ChangePartition)
        return self._rows.read(partition)

    def stop(self) -> None:
        """End the query's own capture."""
        if self._keeper is not None:
            self._keeper.close()

    def begin(self, *, once: bool = False) -> None:
        """Check the walsender's options, or start the query's own capture."""
        super().begin(once=once)
        dsn = self._options.dsn
        if dsn is not None and once:
            # Ask before capture starts: it then reads at least up to this LSN.
            self._flushed = retry_transient(lambda: _flush_lsn(dsn))
        if dsn is None:
            refuse_other_options(self._options, self.reader().spool.identity)
        elif self._keeper is None:
            from pgsluice.spark.keeper import CaptureKeeper

            self._keeper = CaptureKeeper(self._options, once=once)
            self._keeper.wait_for_spool()

    def look_after_capture(self) -> None:
        """Keep the query's own capture process running, if it has one."""
        if self._keeper is not None:
            self._keeper.look_after()

    def end_of_available_now(self) -> Lsn:
        """The end of the first segment that reaches the server's flush LSN."""
        reader = self.reader()
        flushed = self._flushed
        if flushed is None:
            return reader.position()
        while reader.frontier() < flushed:
            if self._keeper is not None:
                self._keeper.require()
            time.sleep(POLL_S)
        ends = (info.end for info in reader.all_segments())
        return next((end for end in ends if end >= flushed), reader.position())

    def _record(self) -> SubscriptionRecord:
        reader = self.reader()
        record = reader.spool.subscription(self._subscription)
        if record is not None:
            if record.owner is not Owner.SOURCE:
                raise ConfigError(
                    f"subscription {record.name} belongs to a configuration of pgsluice",
                    hint="choose another name",
                    option="subscription",
                )
            return record
        # The spool's first subscription reads everything in the spool; a later one starts at
        # the last commit. It does not start at the frontier: after a promotion, commits may
        # come before it.
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


def _flush_lsn(dsn: str) -> Lsn:
    """The server's flush LSN.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be asked.
    """
    from pgsluice.catalog import flush_lsn
    from pgsluice.replication import connect_sql, source_errors

    with connect_sql(dsn) as connection, source_errors("asking for the server's flush LSN"):
        return flush_lsn(connection)
