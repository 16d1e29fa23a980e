"""The streaming query of a subscription: started, watched, and its end explained."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import PgsluiceError, SparkFailed, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.processes import Part, has_ended
from pgsluice.spark.errors import is_lost_planner, summarize_error
from pgsluice.spark.source.spool_stream import lsn_of
from pgsluice.spool.layout import CHECKPOINT, SPARK_LOG, subscription_folder
from pgsluice.subscription.source import read_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_ASK_EVERY_S = 1.0


class SubscriptionQuery:
    """Runs one subscription's streaming query, again and again if it breaks.

    Args:
        session: Spark's session, which is asked for at the first start.
        apply: applies a batch up to its end.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        config: Config,
        subscription: SubscriptionConfig,
        apply: Callable[[Lsn], None],
    ) -> None:
        self._session = session
        self._config = config
        self._subscription = subscription
        self._apply = apply
        folder = subscription_folder(config.spool.path, subscription.name)
        self._checkpoint = folder / CHECKPOINT
        self._query: StreamingQuery | None = None
        self._ask_at = 0.0
        self._beginning: threading.Thread | None = None
        self._start_error: BaseException | None = None
        self._batches = 0
        self._error: str | None = None

    def begin(self) -> None:
        """Start the query in a thread of its own, since Spark takes seconds for it."""
        self._batches = 0
        name = f"pgsluice query of {self._subscription.name}"
        self._beginning = threading.Thread(target=self._begin, name=name, daemon=True)
        self._beginning.start()

    def _begin(self) -> None:
        try:
            self.start(once=False)
        except BaseException as error:
            self._start_error = error

    @property
    def is_beginning(self) -> bool:
        """Whether the query is being started."""
        return self._beginning is not None and self._beginning.is_alive()

    def runs_or_begins(self) -> bool:
        """Whether the query runs, or is being started.

        Raises:
            BaseException: why it could not be started.
        """
        if self.is_beginning:
            return True
        error, self._start_error = self._start_error, None
        if error is not None:
            raise error
        return self.is_active()

    def start(self, *, once: bool) -> None:
        """Start the query; ``once``: it ends by itself at the spool's position."""
        frame = read_batches(
            self._session(),
            self._config.spool.path,
            self._subscription.name,
            max_rows=self._subscription.max_rows_per_batch,
            max_bytes=self._subscription.max_bytes_per_batch,
        )
        self._ask_at = 0.0
        self._batches = 0
        self._error = None
        writer = (
            frame.writeStream.queryName(f"pgsluice {self._subscription.name}")
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(self._checkpoint))
        )
        self._query = writer.trigger(availableNow=True).start() if once else writer.start()

    def is_active(self) -> bool:
        """Whether the query runs, or did within the last second: to ask costs two processes CPU."""
        now = time.monotonic()
        if now >= self._ask_at:
            if self._query is None or not self._query.isActive:
                return False
            self._ask_at = now + _ASK_EVERY_S
        return True

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
        if error is None:
            return None
        if self._error is None and is_lost_planner(error):
            return has_ended(Part.PLANNER)
        return self._error or summarize_error(error)

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

    def _batch(self, frame: DataFrame, number: int) -> None:
        try:
            end = logged_end(self._checkpoint, number)
            if end is None:
                ((end_text,),) = frame.collect()
                end = Lsn.parse(end_text)
            self._apply(end)
            self._batches += 1
        except PgsluiceError as error:
            self._error = str(error)
            raise
        except Exception as error:
            # Spark matches the traceback of what is raised here against a pattern that
            # overflows the JVM's stack when it holds a Java stack trace.
            self._error = summarize_error(error)
            raise PgsluiceError(self._error) from None


def logged_end(checkpoint: Path, number: int) -> Lsn | None:
    """Where a batch ends, as Spark's log of offsets says it.

    Spark has written the batch's offsets there before it runs the batch. To ask the source would be
    a Spark job, which takes longer than most batches.

    Args:
        number: the batch's.

    Returns:
        None if the log is not written as Spark 4 writes it: the source has to be asked.
    """
    try:
        lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
        version, _, offset = lines
        return lsn_of(json.loads(offset)) if version == "v1" else None
    except (OSError, ValueError, SpoolError):
        return None
