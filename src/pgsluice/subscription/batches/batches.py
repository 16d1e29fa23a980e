"""A subscription's batches: each is planned, run as Spark tasks, and recorded.

1. *Plan* (:mod:`pgsluice.subscription.batches.planning`): which tables have changes between their
   own position and the batch's end.
2. *Run* (:mod:`pgsluice.subscription.batches.work`): tasks decode, publish, net and apply each
   table's changes.
3. *Record* (:mod:`pgsluice.subscription.batches.results`): the results become events of the tables,
   and the subscription's position rises to the batch's end.

A crash at any point is harmless: each target stores its own position, and work is planned from each
table's own position. In the worst case, a task finds that its work is done.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import Failure, PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.rejects.table import RejectsPlace
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableRecord, TableState, UnseenLeaf
from pgsluice.spool.layout import LEFTOVERS, STAGING, subscription_folder, tasks_path
from pgsluice.subscription.base.barrier import (
    BarrierAnswer,
    barrier_versions,
    standing_tables,
    waiting_barrier,
    write_answer,
)
from pgsluice.subscription.base.options import (
    rejects_place,
    sink_options,
    table_options,
    target_writer,
)
from pgsluice.subscription.base.work import Outcome, TableWork
from pgsluice.subscription.batches.ends import BatchEnds
from pgsluice.subscription.batches.leftovers import Leftovers
from pgsluice.subscription.batches.planning import plan_alterations, plan_tables, table_work
from pgsluice.subscription.batches.results import BatchRejects, BatchResults, kept_versions
from pgsluice.subscription.batches.tasks import large_batch
from pgsluice.subscription.batches.tasks.apply import ApplyTables
from pgsluice.subscription.batches.truncated_bounds import find_bounds, lacks_bounds
from pgsluice.subscription.batches.unseen_leaves import unseen_leaves, with_unseen
from pgsluice.subscription.batches.work import run_works
from pgsluice.subscription.lifecycle.look_events import LeavesApplied
from pgsluice.subscription.lifecycle.table_events import BATCH_ATTEMPTS
from pgsluice.subscription.lifecycle.tables import SubscriptionTables

if TYPE_CHECKING:
    from pgsluice.spark.session.starting_context import ContextOnDemand


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: changes to apply, from each table's own position up to one end.

    Attributes:
        end: the subscription's position after the batch.
        tables: the record's tables, as they were when the batch was planned.
        planned_at: when it was planned, by the monotonic clock.
    """

    end: Lsn
    works: Sequence[TableWork]
    tables: Mapping[int, TableRecord]
    planned_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True, eq=False)
class Confirmations:
    """The tables whose newest commits need a check, and when: another program may have overwritten
    them.

    In S3, Delta's jar for Spark checks whether a version's file exists, and then writes it. It
    silently overwrites a commit that pgsluice makes in between. The table's next batch notices
    this, because the target is behind the record. If there is no next batch, the target is checked
    once, some time after its last commit. Until then, the spool keeps the changes.

    The promise: no change is lost, even if other writers ignore the conditional writes of the
    store.

    Attributes:
        after_s: how long after a commit to check it, in seconds; 0: never.
    """

    after_s: float
    _since: dict[int, float] | None = None

    def committed(self, oids: Iterable[int]) -> None:
        """Note that these tables have new commits."""
        if self.after_s and self._since is not None:
            self._since.update(dict.fromkeys(oids, time.monotonic()))

    def due(self, record: SubscriptionRecord) -> list[int]:
        """The replicating tables whose newest commits are due for a check; each is returned once.

        A new run does not know when the previous one committed, so all tables are due once.
        """
        if not self.after_s:
            return []
        now = time.monotonic()
        if self._since is None:
            self._since = dict.fromkeys(record.tables, now)
        due = [oid for oid, since in self._since.items() if now - since >= self.after_s]
        for oid in due:
            del self._since[oid]
        known = ((oid, record.tables.get(oid)) for oid in due)
        return [
            oid
            for oid, table in known
            if table is not None and table.is_active and table.committed > Lsn(0)
        ]


class Batches:
    """Applies changes to a subscription's tables.

    Args:
        spark: gives Spark's context; called only if a table has changes.
        rules: the rules of pgsluice's own publications; None: there are none.
    """

    def __init__(
        self,
        spark: ContextOnDemand,
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        rules: PublicationRules | None,
        results: BatchResults,
    ) -> None:
        self._spark = spark
        self._config = config
        self.subscription = subscription
        self._tables = tables
        self._rules = rules
        self._results = results
        self._reader = SpoolReader(config.spool.place)
        self._folder = subscription_folder(config.spool.folder, subscription.name)
        self._ends = BatchEnds(self._reader, subscription)
        self._confirmations = Confirmations(subscription.sink.confirms_after_s)
        self._rejects = BatchRejects()
        self._leftovers = Leftovers(self._folder / LEFTOVERS, tables)

    # One batch

    def run_next(self, wait_s: float = 0.0) -> bool:
        """Run the batch after the subscription's position; only one thread calls this.

        Args:
            wait_s: how long to wait for changes, and then at a barrier, in seconds.

        Returns:
            True if there was a batch.

        Raises:
            SpoolHole: the segment after the position cannot be read.
            SinkError: the target as a whole cannot be used.
        """
        start = self._tables.position
        end = self._ends.after(start, wait_s)
        if end == start:
            self._confirm_commits()
            self.delete_leftovers()
            return False
        if self._spark.running is None and plan_tables(self._reader, self._tables.durable, end):
            self._spark()  # its start takes seconds: nobody may need the lock meanwhile
        with self._tables.lock:
            batch = self._plan(end)
            self._record(batch, self._run(batch))
            self.answer_barrier()
        self.delete_leftovers()
        return True

    def _plan(self, end: Lsn, *, with_deferred: bool = False) -> Batch:
        record = self._tables.record
        works = plan_tables(self._reader, record, end, with_deferred=with_deferred)
        return Batch(end, works, record.tables)

    def _run(self, batch: Batch) -> list[Outcome]:
        """Run the tasks of a batch.

        A task that needs the bounds of truncated partitions reports them and runs again with these
        bounds. This ends, because each attempt has more bounds than the one before.
        """
        outcomes = self._run_works(batch.works)
        while lacking := [outcome for outcome in outcomes if lacks_bounds(outcome)]:
            works, refused = find_bounds(self._config.source.conninfo, batch.tables, lacking)
            done = [outcome for outcome in outcomes if not lacks_bounds(outcome)]
            outcomes = [*done, *refused, *self._run_works(works)]
        return outcomes

    def _run_works(self, works: Sequence[TableWork]) -> list[Outcome]:
        return run_works(self._spark, self._task(works), works) if works else []

    def _task(self, works: Sequence[TableWork]) -> ApplyTables:
        """The task function for these tables only: Spark sends it to each task."""
        oids = [work.relation_oid for work in works]
        versions = barrier_versions(self._folder)
        settings = self.subscription  # others may come at any time
        return ApplyTables(
            spool=self._config.spool.place,
            spool_id=self._spool_id,
            sink=sink_options(settings),
            options=table_options(settings),
            keep_versions=kept_versions(self._tables.record, versions, oids),
            rules=None if self._rules is None else self._rules.of_tables(oids),
            sends_all_origins=self._config.source.origin == "any",
            large_bytes=large_batch.LARGE_BYTES,
            piece_bytes=large_batch.PIECE_BYTES,
            commits_may_be_lost=settings.sink.confirms_after_s > 0,
            staging_path=tasks_path(self._config.spool.place, settings.name, STAGING),
            rejects=self._rejects_place(),
        )

    @property
    def _spool_id(self) -> str:
        return self._reader.spool.identity.spool_id

    def _rejects_place(self) -> RejectsPlace | None:
        return rejects_place(self._config, self.subscription, self._spool_id)

    def _record(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """Record the outcome of a batch durably; its rejects first."""
        if (place := self._rejects_place()) is not None:
            outcomes = self._rejects.folded(place, self._tables.record.tables, outcomes)
        self._results.record(batch.end, outcomes, batch.planned_at)
        self._confirmations.committed(
            work.relation_oid for work, result in outcomes if not isinstance(result, Failure)
        )

    def delete_leftovers(self) -> bool:
        """Delete what killed processes left in one table, if the daily search is due.

        Returns:
            whether another table waits.
        """
        with self._tables.lock:
            return self._leftovers.tend(self.subscription, self._spool_id, self._rejects_place())

    # Commits of ours that another program has overwritten

    def _confirm_commits(self) -> None:
        """Check tables' newest commits once more; apply again what another program overwrote."""
        due = self._confirmations.due(self._tables.durable)
        lost = [oid for oid in due if self._is_overwritten(oid)]
        if not lost:
            return
        with self._tables.lock:
            record = self._tables.record
            works = [
                table_work(record, oid, record.tables[oid].applied_through, {})
                for oid in lost
                if oid in record.tables
            ]
            batch = Batch(record.position, works, record.tables)
            self._record(batch, self._run(batch))

    def _is_overwritten(self, oid: int) -> bool:
        table = self._tables.durable.tables[oid]
        at_target = self.subscription.names.table(table.namespace, table.name)
        try:
            return self.subscription.sink.is_overwritten(*at_target, table.version)
        except PgsluiceError:  # the store is away: ask again later
            self._confirmations.committed([oid])
            return False

    # Tables that are behind

    def is_behind(self) -> bool:
        """Whether a table that may be merged now has unapplied changes up to the position."""
        with self._tables.lock:
            self._results.end_deferrals()
            record, among = self._tables.durable, self._tables.unfinished
            return bool(
                plan_tables(self._reader, record, record.position, among=among)
                or plan_alterations(self._reader, record, among=among)
            )

    def catch_up(self, *, with_deferred: bool = False) -> bool:
        """Apply changes to tables that are behind the subscription's position.

        Returns:
            True if there was work.
        """
        with self._tables.lock:
            record = self._tables.record
            batch = self._plan(record.position, with_deferred=with_deferred)
            columns = plan_alterations(self._reader, record, with_deferred=with_deferred)
            batch = replace(batch, works=[*batch.works, *columns])
            if batch.works:
                self._record(batch, self._run(batch))
            return bool(batch.works)

    def drain(self) -> None:
        """Apply everything up to the position, including deferred merges and failed work."""
        for _ in range(BATCH_ATTEMPTS):
            if not self.catch_up(with_deferred=True):
                return

    def catch_up_held(
        self, partitions: Mapping[int, Collection[int]], position: Lsn
    ) -> dict[int, Failure]:
        """Apply the spool's changes up to a position to tables that are being copied (state ``d``),
        in a job of their own.

        Nothing else applies changes to these tables. The new positions are not recorded: a repeated
        attempt finds them in the targets.

        Args:
            partitions: the tables, each with its partitions at the position.

        Returns:
            the tables that failed, and why.
        """
        record = self._tables.record
        held = {
            oid: replace(record.tables[oid], state=TableState.READY)
            for oid in partitions
            if oid in record.tables
        }
        record = replace(record, tables={**record.tables, **held})
        works = plan_tables(self._reader, record, position, with_deferred=True, among=held)
        works = [self._held_work(work, record, partitions[work.relation_oid]) for work in works]
        outcomes = self._run(Batch(position, works, held))
        return {
            work.relation_oid: result for work, result in outcomes if isinstance(result, Failure)
        }

    def _held_work(
        self, work: TableWork, record: SubscriptionRecord, partitions: Collection[int]
    ) -> TableWork:
        """The work of a table in state ``d``; remembers applied leaves that no refresh found."""
        oid, table = work.relation_oid, record.tables[work.relation_oid]
        wanted = _without_replaced_leaves(work, table, partitions)
        applied = frozenset[int]()
        if len(wanted.oids) < len(work.oids):
            applied = self._applied_before(work, record)
        # What the target has of these may be deleted by changes that follow.
        begun = applied.intersection(table.partitions.load)
        unseen = unseen_leaves(self._reader, oid, table, {*wanted.oids, *applied}, work.through)
        unseen = with_unseen(unseen, map(UnseenLeaf, sorted(begun)))
        known = self._tables.get(oid)
        if (
            known is not None
            and known.replaces_partitions
            and unseen != known.pending.unseen_leaves
        ):
            self._tables.apply(oid, LeavesApplied(unseen))
        return replace(wanted, oids=tuple(sorted({*wanted.oids, *begun})))

    def _applied_before(self, work: TableWork, record: SubscriptionRecord) -> frozenset[int]:
        """The relations whose changes an attempt applied that crashed before it was recorded."""
        begun = attempt(self._task([work]).begin, work)
        reached = work.through if isinstance(begun, Failure) else min(begun[1], work.through)
        held = {work.relation_oid: record.tables[work.relation_oid]}
        works = plan_tables(self._reader, record, reached, with_deferred=True, among=held)
        return frozenset(oid for each in works for oid in each.oids)

    # Barriers

    def answer_barrier(self) -> None:
        """Answer a barrier that the subscription has reached, or passed.

        It is reached when everything that was committed up to it is applied, including deferred
        merges.
        """
        barrier = waiting_barrier(self._folder)
        if barrier is None or barrier.position is None:
            return
        with self._tables.lock:
            start, end = self._tables.position, barrier.position
            if start > end:
                answer = BarrierAnswer(barrier.barrier_id, start, True, {})
            elif self._reader.frontier() < end or self._reader.segments(start, end):
                return
            else:
                self.drain()
                tables = standing_tables(self._tables.record, barrier, self._target_version)
                answer = BarrierAnswer(barrier.barrier_id, start, False, tables)
            write_answer(self._folder, answer)

    def _target_version(self, oid: int, table: TableRecord) -> int:
        """The newest version of a table's target; -1: there is none."""
        return target_writer(self.subscription, self._spool_id, oid, table).version()


def _without_replaced_leaves(
    work: TableWork, table: TableRecord, partitions: Collection[int]
) -> TableWork:
    """The work of a table in state ``d``, without changes of partitions that are replaced anyway.

    Removed partitions: the copy replaces the rows in their bounds. New partitions: the copy reads
    all their rows. Other partitions that the table does not have at the end: a catalog refresh
    finds that they are gone, or none ever found them. No catalog refresh has found the partitions
    that were added since the last one. So it is unknown whether a TRUNCATE emptied the table.
    """
    replaced = {*table.partitions.gone, *table.partitions.load}
    there = {work.relation_oid, *partitions} - replaced
    oids = tuple(oid for oid in work.oids if oid in there)
    return replace(work, oids=oids, leaves=frozenset())
