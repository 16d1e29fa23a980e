"""The copies under one snapshot: what they read, and what becomes of each table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import (
    CopyCounts,
    CopyJournal,
    CopyPace,
    CopyResult,
    CopyTables,
    CopyTurn,
    CopyTurns,
    CopyWork,
    TableCopy,
    stage_tables,
)
from pgsluice.errors import Failure, Remedy
from pgsluice.failpoints import failpoint
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.snapshots import Snapshot, SnapshotGone, TableLocked
from pgsluice.snapshots.ranges import WHOLE
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import Spool, SpoolReader, TableRecord, TableState
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.base.options import sink_options, table_options
from pgsluice.subscription.base.received import Received
from pgsluice.subscription.copies.kept import (
    KeptCopies,
    ReadSnapshot,
    SnapshotAge,
    are_worth_keeping,
)
from pgsluice.subscription.copies.partitions import (
    CatchUp,
    bring_to,
    plan_partitions,
    say_whole_is_next,
)
from pgsluice.subscription.copies.pauses import CopyPauses
from pgsluice.subscription.copies.plan import (
    SourceTables,
    awaits_copy,
    copy_of,
    copy_work,
    read_source,
)
from pgsluice.subscription.copies.results import copy_event, failed_event, is_planned
from pgsluice.subscription.lifecycle.look_events import NotSent
from pgsluice.subscription.lifecycle.table_events import CopyBegun, CopyPlanned, CopyWaits
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.looks import CatalogLooks

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)


class CopyRound:
    """Copies some of a subscription's tables under one snapshot.

    Args:
        context: Spark's, which is asked for when there is a table to copy.
        counts: of the subscription's copies.
        pauses: takes the tables that have to wait.
        turns: all rounds of the run.
        pace: of all copies of the subscription.
        received: the run's capture.
        catch_up: applies changes to tables in state ``d``.
        number: no other round of the subscription has it now: it names the files of the kept
            snapshot and the journal.
        cores: how many of Spark's cores the copies may have, asked again and again.
        is_stopping: the round ends soon after it is true.

    Attributes:
        number: see above.
        claimed: the tables that it is about to copy: no other round does.
    """

    def __init__(
        self,
        context: Callable[[], SparkContext],
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        looks: CatalogLooks,
        counts: CopyCounts,
        pauses: CopyPauses,
        turns: CopyTurns,
        pace: CopyPace,
        received: Received,
        catch_up: CatchUp,
        *,
        number: int,
        cores: Callable[[], int],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.number = number
        self.claimed: frozenset[int] = frozenset()
        self._works: dict[int, CopyWork] = {}
        self._in_snapshot: Mapping[int, SourceFingerprint] = {}
        self._context = context
        self._config = config
        self._subscription = subscription
        self._tables = tables
        self._looks = looks
        self._counts = counts
        self._pauses = pauses
        self._turns = turns
        self._pace = pace
        self._received = received
        self._catch_up = catch_up
        self._cores = cores
        self._is_stopping = is_stopping
        folder = subscription_folder(config.spool.path, subscription.name)
        self._kept = KeptCopies(folder, number)

    def copies(self, oid: int) -> bool:
        """Whether a table waits for this round, and for no other."""
        # Asked for each table that waits, ten times a second: nothing is read from the disk.
        work = self._works.get(oid)
        return oid in self.claimed or (work is not None and is_planned(self._tables.get(oid), work))

    def begun_before(self) -> frozenset[int]:
        """The tables whose copies an earlier run has begun under a snapshot that it had kept."""
        kept = self._kept.begun_before()
        return frozenset() if kept is None else kept[1].tables

    def claim(self, oids: Collection[int], subscription: SubscriptionConfig) -> None:
        """Take tables on; the caller holds the tables' lock.

        Args:
            subscription: its settings now. A user may have changed them before asking for a copy.
        """
        self.claimed, self._subscription = frozenset(oids), subscription

    def begin(self) -> None:
        """Set state ``d`` durably before the snapshot: the spool then keeps what follows it."""
        with self._tables.changing():
            for oid, table in self._tables.record.tables.items():
                if oid in self.claimed and awaits_copy(table) and not table.replaces_partitions:
                    self._tables.apply(oid, CopyBegun(self._tables.position))

    def resume(self) -> Failure | None:
        """Go on with what an earlier run has staged of the tables that are claimed, if its snapshot
        is still kept.

        Returns:
            what a table waits for outside of itself, if one does.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        kept = self._kept.begun_before()
        if kept is None:
            return None
        with self.needs_snapshot():
            return self._resume(*kept)

    def needs_snapshot(self) -> AbstractContextManager[None]:
        """A block in which the snapshot stays that an earlier run has kept."""
        return self._kept.needed()

    def _resume(self, snapshot: Snapshot, journal: CopyJournal) -> Failure | None:
        task = self._task(snapshot)
        try:
            source, _ = read_source(self._config, self._looks, snapshot, (), 1)
        except SnapshotGone as error:
            logger.info("copies begin again: %s", error.what)
            self._kept.release()
            return None
        self._in_snapshot = source.fingerprints
        copies = []
        with self._tables.changing():
            for table, record in self._waiting(source, self.claimed):
                copy = journal.restore(task, copy_work(table, record))
                if copy is not None:
                    copies.append(copy)
                    self._looks.set_rules(table)
        for copy in copies:
            staged, portions = len(copy.staged), len(copy.portions)
            title = f"{copy.work.namespace}.{copy.work.name}"
            logger.info("%s: its copy goes on, %s of %s portions staged", title, staged, portions)
        return self._stage(ReadSnapshot(self._kept, task, copies, journal))

    def run(self, snapshot: Snapshot, let_go: Callable[[], None]) -> Failure | None:
        """Copy the tables that are claimed and begun; each is committed once it is staged.

        Args:
            snapshot: that somebody holds.
            let_go: ends what holds it.

        Returns:
            what a table waits for outside of itself, if one does.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceUnreachable: no connection.
        """
        self._kept.release()
        gone = {
            oid: table.partitions.gone_bounds
            for oid in self.claimed
            if (table := self._tables.get(oid)) is not None and table.partitions.gone_bounds
        }
        workers = self._subscription.copy_workers
        source, snapshot = read_source(
            self._config, self._looks, snapshot, self.claimed, workers, gone
        )
        self._in_snapshot = source.fingerprints
        known = self._tables.durable.tables
        if any(source.awaits_look(oid, known[oid]) for oid in self.claimed & known.keys()):
            self._looks.look()
        task = self._task(snapshot)
        copies = self._plan(source, task)
        read = ReadSnapshot(self._kept, task, copies)
        if are_worth_keeping(copies, self._subscription.copy_rate):
            read.keep(let_go)
        try:
            with self._kept.needed():
                return self._stage(read)
        finally:
            if self._kept.begun_before() is None:
                self._discard(read)

    def _task(self, snapshot: Snapshot) -> CopyTables:
        return CopyTables(
            self._config.source.dsn,
            snapshot,
            Spool.open(self._config.spool.path).identity.spool_id,
            sink_options(self._subscription),
            table_options(self._subscription),
        )

    def _stage(self, read: ReadSnapshot) -> Failure | None:
        works = {copy.work.facts.oid: copy.work for copy in read.copies}
        self._counts.wait(self.claimed, "")  # also those that are not copied now
        self._works, self.claimed = works, frozenset()
        try:
            waiting = self._stage_all(read)
        finally:
            read.end()
        if not self._is_stopping():  # what is staged serves the next run, if it comes soon
            self._kept.release()
        return waiting

    def _stage_all(self, read: ReadSnapshot) -> Failure | None:
        copies = bring_to(
            read.task.snapshot.position,
            self._tables,
            read.copies,
            self._in_snapshot,
            self._received,
            self._catch_up,
            self._is_stopping,
        )
        self._works = {copy.work.facts.oid: copy.work for copy in copies}
        self._counts.begin(copies)
        try:
            return self._stage_each(read, copies)
        finally:
            if not self._is_stopping():
                self._counts.given_up(copies)

    def _stage_each(self, read: ReadSnapshot, copies: Sequence[TableCopy]) -> Failure | None:
        age = SnapshotAge(self._subscription.name, read.task.snapshot.taken_at)

        def report(copy: TableCopy, number: int) -> None:
            self._say_waits(copy)
            if copy.locked is not None:
                return
            read.staged(copy, number)
            self._counts.staged(copy, number)
            failpoint("copy.staged")

        def cores() -> int:
            read.look()
            age.look()
            self._counts.wait(self._works, "" if turn.running else self._waits_for_now(turn))
            self._counts.tend()
            return self._cores()

        turn = self._turns.join(self._subscription.name, self._subscription.copy_workers, cores)
        waiting: Failure | None = None
        for copy in stage_tables(
            self._context,
            read.reading,
            copies,
            turn,
            self._pace,
            is_wanted=lambda copy: self._waits_for(copy.work, read.task.snapshot),
            are_kept=lambda: read.is_kept,
            report=report,
            is_stopping=self._is_stopping,
        ):
            result = self._finish(read.task, copy)
            if isinstance(result, Failure) and result.remedy is Remedy.WAIT:
                waiting = result
        return waiting

    def _waits_for_now(self, turn: CopyTurn) -> str:
        """What a round waits for that reads nothing, for people; empty: for nothing."""
        if not self._pace.may_begin():
            return "the rate that copy_rate allows"
        is_waiting = turn.wanted_bytes is not None
        return "a turn among the copies" if is_waiting else ""

    def _say_waits(self, copy: TableCopy) -> None:
        """Have the record say whether a table is locked."""
        why = None if copy.locked is None else copy.locked.message
        with self._tables.changing():
            table = self._tables.get(copy.work.facts.oid)
            if table is not None and table.error != why and is_planned(table, copy.work):
                self._tables.apply(copy.work.facts.oid, CopyWaits(why))

    def _waiting(
        self, source: SourceTables, oids: Collection[int]
    ) -> Iterator[tuple[ReplicatedTable, TableRecord]]:
        """Of these tables, those whose copy was begun, and that are sent under a known name."""
        for oid, record in self._tables.record.tables.items():
            is_begun = record.state is TableState.DATA_COPY and awaits_copy(record)
            is_known = oid in source.now and not source.awaits_look(oid, record)
            if is_begun and oid in oids and is_known:
                yield source.now[oid], record

    def _plan(self, source: SourceTables, task: CopyTables) -> list[TableCopy]:
        """Give the tables whose copy was begun their copy numbers."""
        works = []
        with self._tables.changing():
            for oid in self.claimed - source.now.keys():
                record = self._tables.get(oid)
                if record is not None and record.state is TableState.DATA_COPY:
                    self._tables.apply(oid, NotSent())
            for table, record in list(self._waiting(source, source.locked)):
                locked = Failure.of(TableLocked.by(source.locked[table.facts.oid]))
                self._pauses.for_lock(table.facts.oid)
                self._tables.apply(
                    table.facts.oid, failed_event(locked, of_leaves=record.replaces_partitions)
                )
            for table, record in list(self._waiting(source, self.claimed - source.locked.keys())):
                if record.replaces_partitions:
                    is_gone = source.is_gone.get(table.facts.oid)
                    works.append(replace(copy_work(table, record), is_gone=is_gone))
                    self._looks.set_rules(table)
                    continue
                # A table that is newer than the snapshot is refused by the copy's task.
                fingerprint = source.fingerprints.get(table.facts.oid, table.fingerprint)
                planned = CopyPlanned(fingerprint.to_text(), table.relations)
                works.append(copy_work(table, self._tables.apply(table.facts.oid, planned).table))
                self._looks.set_rules(table)
        copies = [copy_of(task, work, source.portions.get(work.facts.oid, WHOLE)) for work in works]
        return plan_partitions(self._tables, copies, source)

    def _finish(self, task: CopyTables, copy: TableCopy) -> CopyResult | Failure | None:
        """Commit a table whose portions are staged, and record what became of it.

        Returns:
            None if the table does not wait for this copy any more.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        work = copy.work
        with self._tables.lock:
            if not self._waits_for(work, task.snapshot):
                logger.info("%s.%s has changed during its copy", work.namespace, work.name)
                self._works.pop(work.facts.oid, None)
                self._counts.given_up([copy])
                return None
            result: CopyResult | Failure | None = copy.failure
            if result is None:
                copy.is_offered = True
                staged = [part for _, part in sorted(copy.staged.items())]
                result = attempt(lambda parts: task.commit(work, parts), staged)
                if isinstance(result, Failure) and result.remedy is Remedy.PARK:
                    copy.is_offered = False  # refused, so that no commit was begun
            failpoint("copy.committed")
            event = copy_event(
                result, work.copy_number, task.snapshot, of_leaves=work.replaces_partitions
            )
            table = self._tables.apply(work.facts.oid, event).table
            self._pauses.end([work.facts.oid])
            if isinstance(result, Failure) and result.remedy is Remedy.LATER:
                self._pauses.for_lock(work.facts.oid)
            # One that failed need not wait for this round's end to be tried again.
            self._works.pop(work.facts.oid, None)
        if isinstance(result, Failure) and result.details is not None:
            logger.warning("%s.%s: %s", work.namespace, work.name, result.details)
        if work.replaces_partitions and isinstance(result, Failure):
            say_whole_is_next(table, result)
        if table.state is TableState.COPIED:
            self._counts.committed(copy)
        else:
            self._counts.given_up([copy])
        self._tables.raise_failure()
        return result

    def _discard(self, read: ReadSnapshot) -> None:
        """Delete what is staged of tables whose copies were not finished: they begin again, and
        would need as much room once more. A target that fails is not asked for each of them.

        Nobody goes on with it: there is no journal, or none any more. What an earlier run has
        staged is left alone, since that run may have committed it.
        """
        for copy in read.copies:
            if self._is_stopping():
                return
            if copy.staged and not copy.is_offered:
                discard = partial(read.task.discard, copy.work)
                if isinstance(attempt(discard, [*copy.staged.values()]), Failure):
                    return

    def _waits_for(self, work: CopyWork, snapshot: Snapshot) -> bool:
        """Whether a table still waits for this very copy.

        The spool may have dropped what follows the snapshot.
        """
        table = self._tables.get(work.facts.oid)
        return (
            table is not None
            and is_planned(table, work)
            and min(table.applied_through, snapshot.position)
            >= SpoolReader(self._config.spool.path).start()
        )
