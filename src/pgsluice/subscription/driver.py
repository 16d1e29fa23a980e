"""One subscription: the streaming query, its record, and what happens between its batches.

The driver is the record's only writer. One lock stands around everything that changes it: a
batch's results, a copy, a catch-up. What a batch does:

1. Spark asks the source for the tables with work (:mod:`pgsluice.subscription.source`) and runs
   one task for each (:mod:`pgsluice.subscription.apply`); ``foreachBatch`` only collects.
2. The results go into the record: new positions, parked tables, what a merge cost.
3. Tables without changes up to the batch's end are applied through it as well. This is worked
   out from the spool again, not from the absence of a result: a table may have been copied
   since the batch was planned.

A crash anywhere is harmless: targets carry their own position, and work is planned from each
table's own, so the worst case is a task that finds its work done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import PgsluiceError, Remedy, SinkError
from pgsluice.events import BatchFinished, MetricsEvent, TableApplied
from pgsluice.events import TableState as StateChanged
from pgsluice.lsn import Lsn
from pgsluice.publication import Publisher
from pgsluice.sinks import make_sink
from pgsluice.spark.errors import summarize_error
from pgsluice.spark.tasks import collect_results, run_tasks
from pgsluice.spool import (
    Cut,
    RecordStore,
    SpoolReader,
    SubscriptionRecord,
    TableRecord,
    TableState,
)
from pgsluice.spool.layout import SPARK_LOG
from pgsluice.subscription.apply import RESULT_DDL, ApplyTables, TaskResult
from pgsluice.subscription.options import sink_options, table_options
from pgsluice.subscription.own_publications import OwnPublications
from pgsluice.subscription.planning import NO_TABLE, plan_tables
from pgsluice.subscription.source import read_table_work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

HEAVY_MERGE_S = 0.5
"""Merges that take longer are spaced out, so that merging takes at most a fifth of the time."""
SPACING = 4
CUTS_APART_S = 60
RULES_AGAIN_S = 1.0
"""When a table is tried again that waits for the rules of a new partition."""
LOOKS = 3
"""After so many of these in a row the table is copied again."""
ATTEMPTS = 5
"""How often in a row a table's unexpected error is tried again before the table is parked."""


class SubscriptionDriver:
    """Runs one subscription's batches in a Spark session.

    Args:
        spark: the session.
        config: the whole configuration.
        subscription: which subscription of it.
        store: holds its durable record, which from here on is the driver's to write.
        report: takes events.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        subscription: SubscriptionConfig,
        store: RecordStore,
        report: Callable[[MetricsEvent], None],
    ) -> None:
        self.spark = spark
        self.config = config
        self.subscription = subscription
        self.lock = threading.RLock()
        self.report = report
        self.options = table_options(subscription)
        self.sink = sink_options(subscription)
        self.reader = SpoolReader(config.spool.path)
        self.spool = self.reader.spool
        self.spool_id = self.spool.identity.spool_id
        self.record = store.record
        self._store = store
        self.own = _own_publications(config, subscription)
        self.rules: dict[int, Mapping[int, Publisher]] = {}
        self.needs_look = False
        self.failure: SinkError | None = None
        self._failures: dict[int, int] = {}
        self._looks: dict[int, int] = {}
        self._last_cut = time.monotonic()
        self._batches = 0
        self._trouble: str | None = None
        self._noted: str | None = None

    def location(self, namespace: str, name: str) -> str:
        """Where a table's target lies, for people."""
        return make_sink(self.sink).location(namespace, name)

    def save(self) -> None:
        """Make the record durable."""
        self._store.save(self.record)

    def take_over(self, config: Config) -> None:
        """What another configuration says of our own publications; the rest stays as it is.

        To have some at all, or none any more, waits for the next start: until the tables are
        looked at, rows would pass that should not.

        Raises:
            ConfigError: their statements cannot be read.
        """
        for one in config.subscriptions:
            if one.name == self.subscription.name and self.own is not None:
                self.own = _own_publications(config, one) or self.own

    # The query

    def start(self, *, once: bool) -> StreamingQuery:
        """Start the streaming query; ``once``: it ends by itself at the spool's position."""
        folder = self.spool.subscription_folder(self.subscription.name)
        frame = read_table_work(
            self.spark,
            self.config.spool.path,
            self.subscription.name,
            max_rows=self.subscription.max_rows_per_batch,
            max_bytes=self.subscription.max_bytes_per_batch,
        )
        self._batches = 0
        self._trouble = None
        writer = (
            frame.writeStream.queryName(f"pgsluice {self.subscription.name}")
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(folder / "checkpoint"))
        )
        return writer.trigger(availableNow=True).start() if once else writer.start()

    def _batch(self, frame: DataFrame, _: int) -> None:
        try:
            self._apply(frame)
        except PgsluiceError as error:
            self._trouble = str(error)
            raise
        except Exception as error:
            # Spark matches the traceback of what is raised here against a pattern that
            # overflows the JVM's stack when it holds a Java stack trace.
            self._trouble = summarize_error(error)
            raise PgsluiceError(self._trouble) from None

    def _apply(self, frame: DataFrame) -> None:
        started = time.monotonic()
        with self.lock:
            results = collect_results(frame.mapInArrow(self._task(), RESULT_DDL), TaskResult)
            # Also a batch without work for any table has one row: it says where it ends.
            end = Lsn(max((result.planned_end for result in results), default=0))
            tables = [result for result in results if result.relation_oid != NO_TABLE]
            self.take(end, tables, started)
            self._batches += 1

    def _task(self) -> ApplyTables:
        return ApplyTables(
            spool_path=str(self.config.spool.path),
            spool_id=self.spool_id,
            sink=self.sink,
            options=self.options,
            keep_versions=self._kept_versions(),
            rules=self.rules if self.own is not None else None,
        )

    # Between batches

    def catch_up(self, *, with_deferred: bool = False) -> None:
        """Bring tables that are behind to the subscription's position, in a job of their own."""
        with self.lock:
            works = plan_tables(
                self.reader, self.record, self.record.position, with_deferred=with_deferred
            )
            if works:
                started = time.monotonic()
                task = self._task()
                results = run_tasks(
                    self.spark, task.run, [work.to_bytes() for work in works], TaskResult
                )
                self.take(self.record.position, results, started)

    def is_behind(self) -> bool:
        """Whether a table that may be merged now has work up to the position."""
        with self.lock:
            self._lift_deferrals()
            return bool(plan_tables(self.reader, self.record, self.record.position))

    def settle(self) -> None:
        """Copied tables for which nothing waits are ready, also while the source is idle."""
        with self.lock:
            copied = {
                oid: table
                for oid, table in self.record.tables.items()
                if table.state is TableState.COPIED
            }
            if not copied:
                return
            end, frontier = self.reader.position(), self.reader.frontier()
            for oid, table in copied.items():
                reached = max(self.record.position, table.applied_through)
                if end <= reached and table.applied_through <= frontier:
                    self.record = self.record.with_table(oid, state=TableState.READY)
                    self.report(
                        StateChanged(self.subscription.name, table.namespace, table.name, "r")
                    )
                    self.save()

    def finish(self) -> None:
        """Apply what the cadence put off or what failed once, up to the position.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        for _ in range(ATTEMPTS):
            if not plan_tables(self.reader, self.record, self.record.position, with_deferred=True):
                return
            self.catch_up(with_deferred=True)

    def take_released(self) -> None:
        """Copy again what the spool does not hold any more.

        The size limit let it go, or the subscription was not in the configuration for a while.
        """
        with self.lock:
            released = self.spool.released().get(self.subscription.name, {})
            floor = self.reader.start()
            is_whole = self.record.position < floor
            record = replace(self.record, position=max(self.record.position, floor))
            for oid, table in self.record.tables.items():
                if table.applied_through < floor and (is_whole or str(oid) in released):
                    record = record.to_copy(oid)
            if record != self.record:
                self.record = record
                self.save()

    def report_parked(self) -> None:
        """Say which tables stand still, and why: a run that starts does not move them."""
        for table in self.record.tables.values():
            if table.is_parked:
                self._report_state(table)

    def check_spool(self) -> None:
        """See that what follows the position can be read.

        Raises:
            SpoolHole: it cannot, and no restart will mend it.
        """
        for info in self.reader.segments(self.record.position):
            _ = info.header

    def is_well(self) -> bool:
        """Whether the query has finished a batch since it was last started."""
        return self._batches > 0

    def note(self, message: str | None) -> None:
        """Say what is in the way, once for as long as it lasts; None: nothing is any more."""
        if message is not None and message != self._noted:
            logger.warning("%s: %s", self.subscription.name, message)
        self._noted = message

    def raise_failure(self, query: StreamingQuery | None, *, final_only: bool = False) -> None:
        """Raise what ended the query, if it was an error.

        Args:
            query: the query that ended.
            final_only: leave out what another start may mend.

        Raises:
            SinkError: the target as a whole cannot be used.
            PgsluiceError: anything else that Spark reports.
        """
        if self.failure is not None:
            raise self.failure
        error = query.exception() if query is not None else None
        if error is None:
            return
        what = self._trouble or summarize_error(error)
        if not final_only:
            raise PgsluiceError(
                f"the query of {self.subscription.name} failed: {what}",
                hint=f"start again: nothing is lost. What Spark said is in "
                f"{self.config.spool.path / SPARK_LOG}",
            )
        self.note(f"the query failed and is started again: {what}")

    # Results

    def take(self, end: Lsn, results: Sequence[TaskResult], started: float) -> None:
        """Put a batch's results into the record, durably, and report them."""
        tables = dict(self.record.tables)
        # A table may have left, or wait for a copy, since the batch was planned.
        results = [
            result
            for result in results
            if (table := tables.get(result.relation_oid)) is not None and table.is_active
        ]
        for result in results:
            tables[result.relation_oid] = self._after(tables[result.relation_oid], result)
        position = max(self.record.position, end)
        record = replace(self.record, tables=tables, position=position)
        behind = {
            work.relation_oid
            for work in plan_tables(self.reader, record, position, with_deferred=True)
        }
        for oid, table in tables.items():
            if table.is_active and oid not in behind:
                tables[oid] = replace(
                    table,
                    applied_through=max(table.applied_through, position),
                    state=TableState.READY,
                )
        before = self.record.tables
        self.record = self._with_cut(replace(record, tables=tables))
        self._lift_deferrals()
        self.save()
        self._report(results, started)
        for oid, table in tables.items():
            if table.state is TableState.READY and before[oid].state is not TableState.READY:
                self._report_state(table)
        if self.failure is not None:
            raise self.failure

    def _after(self, table: TableRecord, result: TaskResult) -> TableRecord:
        """A table's record after its task."""
        if result.remedy is None:
            self._failures.pop(result.relation_oid, None)
            self._looks.pop(result.relation_oid, None)
            merge_s = result.apply_s + result.maintain_s
            wait_s = max(
                self.subscription.apply_interval_s,
                SPACING * merge_s if merge_s > HEAVY_MERGE_S else 0.0,
            )
            return replace(
                table,
                applied_through=max(table.applied_through, Lsn(result.through)),
                committed=max(table.committed, Lsn(result.committed)),
                version=result.version if result.version >= 0 else table.version,
                rows=table.rows + (0 if result.skipped else result.changes),
                merge_s=merge_s,
                deferred=wait_s > 0,
                next_due=time.time() + wait_s,
                error=None,
            )
        if result.remedy is Remedy.LOOK:
            self.needs_look = True
            looks = self._looks[result.relation_oid] = self._looks.get(result.relation_oid, 0) + 1
            if looks < LOOKS:
                return replace(table, deferred=True, next_due=time.time() + RULES_AGAIN_S)
            # Of a partition that is not there any more: what it had is in no stream of ours.
            del self._looks[result.relation_oid]
            return replace(table, state=TableState.INITIALISE, deferred=False)
        if result.remedy is Remedy.STOP:
            self.failure = SinkError(result.error or "the target cannot be used")
            return replace(table, error=result.error)
        if result.remedy in (Remedy.RETRY, Remedy.WAIT):
            logger.warning("%s.%s: %s", table.namespace, table.name, result.details or result.error)
            failures = self._failures.get(result.relation_oid, 0) + 1
            self._failures[result.relation_oid] = failures
            if failures < ATTEMPTS:
                # The spool keeps its changes; the next try comes a little later each time.
                return replace(
                    table, error=result.error, deferred=True, next_due=time.time() + 2**failures
                )
        state = TableState.INITIALISE if result.remedy is Remedy.COPY else TableState.PARKED
        return replace(table, state=state, error=result.error, deferred=False)

    def _with_cut(self, record: SubscriptionRecord) -> SubscriptionRecord:
        """Where all tables stand at one position, readers may rely on it: note it down."""
        active = {oid: table for oid, table in record.tables.items() if table.is_active}
        if any(
            # Behind, or copied at a point that the others have not reached.
            not table.committed <= record.position <= table.applied_through
            for table in active.values()
        ):
            return record
        self._last_cut = time.monotonic()
        cut = Cut(
            lsn=record.position,
            made_at=time.time(),
            versions={oid: table.version for oid, table in active.items() if table.version >= 0},
        )
        # Besides the newest, one a minute stays for those who read an older one.
        older = [
            old
            for old in record.cuts
            if cut.made_at - old.made_at <= self.subscription.cut_retention_s
        ]
        if not older or cut.made_at - older[-1].made_at >= CUTS_APART_S:
            older.append(cut)
        return replace(record, cut=cut, cuts=tuple(older))

    def _kept_versions(self) -> dict[int, tuple[int, ...]]:
        """Target versions that readers of cuts need, by table."""
        versions: dict[int, set[int]] = {}
        newest = () if self.record.cut is None else (self.record.cut,)
        for cut in (*self.record.cuts, *newest):
            for oid, version in cut.versions.items():
                versions.setdefault(oid, set()).add(version)
        return {oid: tuple(sorted(found)) for oid, found in versions.items()}

    def _lift_deferrals(self) -> None:
        """Let tables merge again whose time has come, and all of them when a cut is due."""
        now = time.time()
        cut_due = time.monotonic() - self._last_cut >= self.subscription.cut_interval_s
        tables = {
            oid: replace(table, deferred=False)
            # One that failed waits for its next try, or it would be parked in a moment.
            if table.deferred and ((cut_due and oid not in self._failures) or now >= table.next_due)
            else table
            for oid, table in self.record.tables.items()
        }
        if tables != self.record.tables:
            self.record = replace(self.record, tables=tables)
            self.save()

    def _report_state(self, table: TableRecord) -> None:
        self.report(
            StateChanged(
                self.subscription.name, table.namespace, table.name, str(table.state), table.error
            )
        )

    def _report(self, results: Sequence[TaskResult], started: float) -> None:
        for result in results:
            table = self.record.tables[result.relation_oid]
            if result.remedy is Remedy.LOOK:
                continue
            if result.remedy is not None:
                self._report_state(replace(table, error=result.error))
                continue
            self.report(
                TableApplied(
                    self.subscription.name,
                    table.namespace,
                    table.name,
                    table.applied_through,
                    result.changes,
                    result.decode_s + result.net_s + result.apply_s + result.maintain_s,
                )
            )
        self.report(
            BatchFinished(
                self.subscription.name,
                self.record.position,
                sum(result.changes for result in results),
                time.monotonic() - started,
                len(results),
                *self._lag(),
            )
        )

    def _lag(self) -> tuple[int, float]:
        """Bytes and seconds that the spool is ahead; the server may be further."""
        waiting = [one for one in self.reader.all_segments() if one.end > self.record.position]
        if not waiting:
            return 0, 0.0
        oldest = min(one.written_at for one in waiting)
        return self.reader.frontier() - self.record.position, max(0.0, time.time() - oldest)


def _own_publications(config: Config, subscription: SubscriptionConfig) -> OwnPublications | None:
    if config.publications is None or subscription.publications is None:
        return None
    return OwnPublications(config.publications, subscription)
