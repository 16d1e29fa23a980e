"""The streaming query of a subscription: started, watched, and its end explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import PgsluiceError, SparkFailed
from pgsluice.spark.errors import summarize_error
from pgsluice.spool.layout import CHECKPOINT, SPARK_LOG, subscription_folder
from pgsluice.subscription.source import read_table_work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class SubscriptionQuery:
    """Runs one subscription's streaming query, again and again if it breaks.

    Args:
        apply: applies a batch, whose frame has a row for each table with work.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        subscription: SubscriptionConfig,
        apply: Callable[[DataFrame], None],
    ) -> None:
        self._spark = spark
        self._config = config
        self._subscription = subscription
        self._apply = apply
        self._query: StreamingQuery | None = None
        self._batches = 0
        self._error: str | None = None

    def start(self, *, once: bool) -> None:
        """Start the query; ``once``: it ends by itself at the spool's position."""
        folder = subscription_folder(self._config.spool.path, self._subscription.name)
        frame = read_table_work(
            self._spark,
            self._config.spool.path,
            self._subscription.name,
            max_rows=self._subscription.max_rows_per_batch,
            max_bytes=self._subscription.max_bytes_per_batch,
        )
        self._batches = 0
        self._error = None
        writer = (
            frame.writeStream.queryName(f"pgsluice {self._subscription.name}")
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(folder / CHECKPOINT))
        )
        self._query = writer.trigger(availableNow=True).start() if once else writer.start()

    def is_active(self) -> bool:
        """Whether the query runs."""
        return self._query is not None and bool(self._query.isActive)

    def has_applied_batch(self) -> bool:
        """Whether the query has finished a batch since it was last started."""
        return self._batches > 0

    def await_end(self, timeout_s: int) -> bool:
        """Wait for the query's end; False after the timeout. :meth:`raise_failure` says why."""
        from pyspark.errors import StreamingQueryException

        assert self._query is not None
        try:
            return bool(self._query.awaitTermination(timeout_s))
        except StreamingQueryException:
            return True

    def stop(self) -> None:
        """End the query, if it runs."""
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def failure(self) -> str | None:
        """What ended the query, in one line; None when it runs or ended by itself."""
        error = self._query.exception() if self._query is not None else None
        return None if error is None else self._error or summarize_error(error)

    def raise_failure(self) -> None:
        """Raise what ended the query, if it was an error.

        Raises:
            SparkFailed: what Spark reports.
        """
        failure = self.failure()
        if failure is not None:
            raise SparkFailed.of_text(
                f"the query of {self._subscription.name} failed: {failure}",
                hint=f"start again: nothing is lost. What Spark said is in "
                f"{self._config.spool.path / SPARK_LOG}",
            )

    def _batch(self, frame: DataFrame, _: int) -> None:
        try:
            self._apply(frame)
            self._batches += 1
        except PgsluiceError as error:
            self._error = str(error)
            raise
        except Exception as error:
            # Spark matches the traceback of what is raised here against a pattern that
            # overflows the JVM's stack when it holds a Java stack trace.
            self._error = summarize_error(error)
            raise PgsluiceError(self._error) from None
