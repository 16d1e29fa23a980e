"""One subscription at work: its query, its copies, and what happens between batches.

A shell around :mod:`pgsluice.subscription.tables`, which owns lock and record. What a batch does:

1. Spark asks the source where the batch ends, and calls the driver.
2. The driver plans which tables have work up to there (:mod:`pgsluice.subscription.planning`), and
   has it done (:mod:`pgsluice.subscription.batch_work`).
3. The results become events of their tables (:mod:`pgsluice.subscription.batch_results`).

A crash anywhere is harmless: targets carry their own position, and work is planned from each
table's own, so the worst case is a task that finds its work done.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import CopyTurns
from pgsluice.errors import Failure
from pgsluice.events import MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetIdentity, TargetTable
from pgsluice.spark.source.spool_stream import LONG_POLL_S
from pgsluice.spool import RecordStore, SpoolReader, TableRecord, TableState
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription import large_batch
from pgsluice.subscription.apply import ApplyTables
from pgsluice.subscription.barrier import (
    HOLD_S,
    BarrierAnswer,
    BarrierWait,
    barrier_versions,
    standing_tables,
    waiting_barrier,
    write_answer,
)
from pgsluice.subscription.batch_results import BatchResults
from pgsluice.subscription.batch_work import apply_works
from pgsluice.subscription.cadence import kept_versions
from pgsluice.subscription.looks import CatalogLooks
from pgsluice.subscription.options import sink_options, table_options, too_many_copy_cores
from pgsluice.subscription.planning import Outcome, TableWork, plan_alterations, plan_tables
from pgsluice.subscription.publication_rules import PublicationRules
from pgsluice.subscription.query import SubscriptionQuery
from pgsluice.subscription.received import Received
from pgsluice.subscription.suspicious_tables import SuspiciousTables
from pgsluice.subscription.table_copies import TableCopies
from pgsluice.subscription.table_events import BATCH_ATTEMPTS, HoldReleased
from pgsluice.subscription.tables import SubscriptionTables
from pgsluice.subscription.truncated_leaves import apply_truncated

if TYPE_CHECKING:
    from pgsluice.spark.on_demand import SessionOnDemand

logger = logging.getLogger(__name__)

_LITTLE_BYTES = 16 * 2**20
"""Changes that are applied without the query, while it starts."""


class SubscriptionDriver:
    """Runs one subscription in a Spark session.

    Args:
        spark: Spark's session, which is asked for when it is needed.
        config: the whole configuration.
        subscription: which subscription of it.
        store: holds its durable record, which from here on nobody else may write.
        report: takes events.
        turns: the copies of all subscriptions of the run.
        received: the run's capture.

    Attributes:
        report: takes events.
        tables: its tables.
        looks: finds new tables, and those that have to be copied or verified.
        copies: copies the tables that wait for it.
        suspicious: verifies the tables that may differ from the source.
        query: its streaming query.
    """

    def __init__(
        self,
        spark: SessionOnDemand,
        config: Config,
        subscription: SubscriptionConfig,
        store: RecordStore,
        report: Callable[[MetricsEvent], None],
        turns: CopyTurns,
        received: Received,
    ) -> None:
        self.subscription = subscription
        self.report = report
        self.tables = SubscriptionTables(store, report)
        self._spark = spark
        self._config = config
        self._reader = SpoolReader(config.spool.path)
        self._folder = subscription_folder(config.spool.path, subscription.name)
        self._staging = self._folder / "staging"
        self._rules = PublicationRules.of(config, subscription)
        self._results = BatchResults(subscription, self.tables, self._reader, report)
        self.looks = CatalogLooks(config, subscription, self.tables, self._rules)
        self.copies = TableCopies(
            spark.context,
            config,
            subscription,
            self.tables,
            self.looks,
            report,
            turns,
            received,
            self._catch_up_held,
        )
        self.suspicious = SuspiciousTables(
            config, subscription, self.tables, self._rules, self.log_once
        )
        self.query = SubscriptionQuery(spark, config, subscription, self._apply)
        self._logged: str | None = None
        # What a run left that was killed: it may be as large as a transaction.
        shutil.rmtree(self._staging, ignore_errors=True)
        notices = *subscription.sink.without_effect(), too_many_copy_cores(config, subscription)
        for sentence in filter(None, notices):
            logger.warning("%s: %s", subscription.name, sentence)

    def reread_publications(self, config: Config) -> Callable[[], None]:
        """Read the statements of pgsluice's publications from another configuration.

        Returns:
            what takes them over, for the next look at the catalog.

        Raises:
            ConfigError: they cannot be read.
        """
        if self._rules is None:
            return lambda: None
        return self._rules.reread(config, self.subscription.name)

    # Batches

    def _apply(self, end: Lsn) -> None:
        started = time.monotonic()
        with self.tables.lock:
            works = plan_tables(self._reader, self.tables.record, end)
            self._apply_works(works, end, started)
            self.answer_barrier()

    def pass_quiet_segments(self) -> None:
        """Advance through what the spool holds now, if no table has changes there.

        No query is needed for it, and no Spark.
        """
        started, start = time.monotonic(), self.tables.position
        infos = self._reader.segments(start)
        if not infos:
            return
        # After the listing, like planning (:mod:`pgsluice.subscription.barrier`).
        end = BarrierWait(self._folder).limit(start, infos[-1].end, HOLD_S)
        with self.tables.lock:
            if not plan_tables(self._reader, self.tables.record, end, with_deferred=True):
                self._results.record(end, [], started)

    def apply_little(self) -> None:
        """Apply what the spool holds now, unless it is much: the query divides that into batches.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        start = self.tables.position
        infos = self._reader.segments(start)
        if not infos or sum(info.size_bytes for info in infos) > _LITTLE_BYTES:
            return
        if sum(info.header.counts.changes for info in infos) > self.subscription.max_rows_per_batch:
            return
        # After the listing, like planning (:mod:`pgsluice.subscription.barrier`).
        end = BarrierWait(self._folder).limit(start, infos[-1].end, LONG_POLL_S)
        if end > start:
            self._apply(end)

    def _apply_works(self, works: Sequence[TableWork], end: Lsn, started: float) -> None:
        self._results.record(end, self._outcomes(works, self.tables.record.tables), started)

    def _outcomes(
        self, works: Sequence[TableWork], tables: Mapping[int, TableRecord]
    ) -> list[Outcome]:
        def apply(works: Sequence[TableWork]) -> list[Outcome]:
            return apply_works(self._spark.context, self._task(works), works)

        return apply_truncated(self._config.source.dsn, tables, apply(works), apply)

    def _task(self, works: Sequence[TableWork]) -> ApplyTables:
        """What applies these tables' work. It travels to each task, so it knows no other tables."""
        oids = [work.relation_oid for work in works]
        versions = barrier_versions(self._folder)
        return ApplyTables(
            spool_path=str(self._config.spool.path),
            spool_id=self._reader.spool.identity.spool_id,
            sink=sink_options(self.subscription),
            options=table_options(self.subscription),
            keep_versions=kept_versions(self.tables.record, versions, oids),
            rules=None if self._rules is None else self._rules.of_tables(oids),
            sends_all_origins=self._config.source.origin == "any",
            large_bytes=large_batch.LARGE_BYTES,
            piece_bytes=large_batch.PIECE_BYTES,
            staging_path=str(self._staging),
        )

    # Between batches

    def catch_up(self, *, with_deferred: bool = False) -> None:
        """Bring tables that are behind to the subscription's position, in a job of their own."""
        tables = self.tables
        with tables.lock:
            works = plan_tables(
                self._reader, tables.record, tables.position, with_deferred=with_deferred
            )
            works += plan_alterations(self._reader, tables.record, with_deferred=with_deferred)
            if works:
                self._apply_works(works, tables.position, time.monotonic())

    def _catch_up_held(
        self, partitions: Mapping[int, Collection[int]], position: Lsn
    ) -> dict[int, Failure]:
        """Apply to tables in state ``d`` what the spool has up to a position, in their own job.

        Nobody else applies changes to them. What their targets have then is not recorded: a
        repetition finds it there.

        Args:
            partitions: the tables, and which partitions they have at the position.

        Returns:
            of which tables that failed, and why.
        """
        record = self.tables.record
        held = {
            oid: replace(record.tables[oid], state=TableState.READY)
            for oid in partitions
            if oid in record.tables
        }
        record = replace(record, tables={**record.tables, **held})
        works = plan_tables(self._reader, record, position, with_deferred=True, among=held)
        works = [
            _without_gone_leaves(work, held[work.relation_oid], partitions[work.relation_oid])
            for work in works
        ]
        outcomes = self._outcomes(works, held)
        return {
            work.relation_oid: result for work, result in outcomes if isinstance(result, Failure)
        }

    def has_waiting_segments(self) -> bool:
        """Whether the spool has segments past the subscription's position.

        Raises:
            SpoolHole: what follows the position cannot be read.
        """
        return bool(self._reader.segments(self.tables.position))

    def is_behind(self) -> bool:
        """Whether a table that may be merged now has work up to the position."""
        with self.tables.lock:
            self._results.end_deferrals()
            record, among = self.tables.durable, self.tables.unfinished
            return bool(
                plan_tables(self._reader, record, record.position, among=among)
                or plan_alterations(self._reader, record, among=among)
            )

    def end_earlier_deferrals(self) -> None:
        """Let all tables merge again that an earlier run deferred, perhaps by another clock."""
        self._results.end_deferrals(now=math.inf)

    def promote_copied(self) -> None:
        """Copied tables for which nothing waits are ready, also while the source is idle."""
        self._results.promote_copied()

    def drain(self) -> None:
        """Apply what the cadence deferred or what failed once, up to the position.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        for _ in range(BATCH_ATTEMPTS):
            record = self.tables.durable
            works = plan_tables(self._reader, record, record.position, with_deferred=True)
            if not works and not plan_alterations(self._reader, record, with_deferred=True):
                return
            self.catch_up(with_deferred=True)

    def answer_barrier(self) -> None:
        """Answer a barrier that the subscription has reached, or passed.

        It is reached when all that was committed up to it is applied, what the cadence deferred
        included.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        barrier = waiting_barrier(self._folder)
        if barrier is None or barrier.position is None:
            return
        with self.tables.lock:
            start, end = self.tables.position, barrier.position
            if start > end:
                answer = BarrierAnswer(barrier.barrier_id, start, True, {})
            elif self._reader.frontier() < end or self._reader.segments(start, end):
                return
            else:
                self.drain()
                tables = standing_tables(self.tables.record, barrier, self._target_version)
                answer = BarrierAnswer(barrier.barrier_id, start, False, tables)
            write_answer(self._folder, answer)

    def _target_version(self, oid: int, table: TableRecord) -> int:
        """The newest version of a table's target; -1: there is none."""
        identity = TargetIdentity(self._reader.spool.identity.spool_id, oid, table.copy_number)
        shell = TargetTable(table.namespace, table.name, pa.schema([]), ())
        return make_sink(sink_options(self.subscription)).open(shell, identity).version

    def copy_released(self) -> None:
        """Have tables copied whose changes the spool does not hold any more.

        The size limit dropped them, or the subscription was not in the configuration for a
        while.
        """
        tables = self.tables
        with tables.changing():
            released = self._reader.spool.released().get(self.subscription.name, {})
            floor = self._reader.start()
            is_whole = tables.position < floor
            tables.advance(floor)
            for oid, table in tables.record.tables.items():
                if table.applied_through >= floor or not (is_whole or str(oid) in released):
                    continue
                if table.state is TableState.DATA_COPY and not is_whole:
                    self.copies.put_off(oid)
                else:
                    tables.apply(oid, HoldReleased())

    def raise_failure(self) -> None:
        """Raise what ended the query, if starting it again does not help.

        Raises:
            SpoolHole: what follows the position cannot be read.
            SinkError: the target as a whole cannot be used.
        """
        for info in self._reader.segments(self.tables.position):
            _ = info.header
        self.tables.raise_failure()

    def log_once(self, message: str | None) -> None:
        """Log a message once for as long as it lasts; None: nothing is in the way any more."""
        if message is not None and message != self._logged:
            logger.warning("%s: %s", self.subscription.name, message)
        self._logged = message


def _without_gone_leaves(
    work: TableWork, table: TableRecord, partitions: Collection[int]
) -> TableWork:
    """The work of a table in state ``d``, of which rows of partitions are replaced.

    Changes of partitions that went do not count: what the source has in their bounds is put there.
    Nor do those of others that the table does not have at the end: a look finds that they went, or
    none has ever found them.
    No look has found the leaves that came since the table's last one. So no TRUNCATE is known to
    have emptied the table.
    """
    there = {work.relation_oid, *partitions} - {*table.gone_leaves}
    oids = tuple(oid for oid in work.oids if oid in there)
    return replace(work, oids=oids, leaves=frozenset())
