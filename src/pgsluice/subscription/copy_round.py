"""The copies under one snapshot: what they read, and what becomes of each table.

A long copy has its snapshot kept by a process of its own, and what it has staged is in a journal:
a run that was killed goes on with it (ADR 0029).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
from pgsluice.errors import Failure, Remedy, SourceUnreachable
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.snapshots import Snapshot, SnapshotFile, SnapshotGone, TableLocked
from pgsluice.snapshots.ranges import PORTION_BYTES, WHOLE
from pgsluice.spark.tasks import attempt
from pgsluice.spool import Spool, SpoolReader, TableRecord, TableState
from pgsluice.spool.layout import copy_files, subscription_folder
from pgsluice.subscription.copy_pauses import CopyPauses
from pgsluice.subscription.copy_plan import (
    SourceTables,
    awaits_copy,
    copy_of,
    copy_work,
    read_source,
)
from pgsluice.subscription.discovery import ReplicatedTable
from pgsluice.subscription.leaf_events import LeavesFailed, LeavesLoaded
from pgsluice.subscription.leaf_plan import portions_of_partitions
from pgsluice.subscription.lifecycle import Event, TableEvent
from pgsluice.subscription.look_events import NotSent
from pgsluice.subscription.looks import CatalogLooks
from pgsluice.subscription.options import sink_options, table_options
from pgsluice.subscription.table_events import (
    CopyBegun,
    CopyFailed,
    CopyFinished,
    CopyPlanned,
    CopySuperseded,
    CopyWaits,
)
from pgsluice.subscription.tables import SubscriptionTables

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

KEPT_FROM_BYTES = 4 * PORTION_BYTES
KEPT_FROM_S = 10.0
"""Copies that are worth a keeper: what smaller ones have staged is soon staged again, and meanwhile
their slot keeps little WAL. With ``copy_rate``, small ones may last, too."""
_WARN_AFTER_S = 3600.0


CatchUp = Callable[[Collection[int], Lsn, Callable[[], bool]], Mapping[int, Failure]]
"""Applies to some tables what is committed up to a position, and says of which that failed."""


class CopyRound:
    """Copies some of a subscription's tables under one snapshot.

    Args:
        context: Spark's, which is asked for when there is a table to copy.
        counts: of the subscription's copies.
        pauses: takes the tables that have to wait.
        turns: all rounds of the run.
        pace: of all copies of the subscription.
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
        catch_up: CatchUp,
        *,
        number: int,
        cores: Callable[[], int],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.number = number
        self.claimed: frozenset[int] = frozenset()
        self._works: dict[int, CopyWork] = {}
        self._context = context
        self._config = config
        self._subscription = subscription
        self._tables = tables
        self._looks = looks
        self._counts = counts
        self._pauses = pauses
        self._turns = turns
        self._pace = pace
        self._catch_up = catch_up
        self._cores = cores
        self._is_stopping = is_stopping
        folder = subscription_folder(config.spool.path, subscription.name)
        snapshot, journal = copy_files(number)
        self._kept = SnapshotFile(folder / snapshot)
        self._journal_path = folder / journal
        self._warn_at = time.monotonic() + _WARN_AFTER_S

    def copies(self, oid: int) -> bool:
        """Whether a table waits for this round, and for no other."""
        # Asked for each table that waits, ten times a second: nothing is read from the disk.
        work = self._works.get(oid)
        return oid in self.claimed or (work is not None and self._is_planned(work))

    def begun_before(self) -> frozenset[int]:
        """The tables whose copies an earlier run has begun under a snapshot that it had kept."""
        snapshot = self._kept.snapshot()
        if snapshot is None:
            return frozenset()
        journal = CopyJournal(self._journal_path, snapshot)
        journal.read()
        return journal.tables

    def claim(self, oids: Collection[int]) -> None:
        """Take tables on; the caller holds the tables' lock."""
        self.claimed = frozenset(oids)

    def begin(self) -> None:
        """Set state ``d`` durably before the snapshot: the spool then keeps what follows it."""
        with self._tables.changing():
            for oid, table in self._tables.record.tables.items():
                if oid in self.claimed and awaits_copy(table) and not table.replaces_partitions:
                    self._tables.apply(oid, CopyBegun(self._tables.position))
        self._counts.wait(self.claimed, "a snapshot, which follows the transactions open now")

    def resume(self) -> Failure | None:
        """Go on with what an earlier run has staged of the tables that are claimed, if its snapshot
        is still kept.

        Returns:
            what a table waits for outside of itself, if one does.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        snapshot = self._kept.snapshot()
        if snapshot is None:
            return None
        journal = CopyJournal(self._journal_path, snapshot)
        journal.read()
        task = self._task(snapshot)
        try:
            source, _ = read_source(self._config, self._looks, snapshot, ())
        except SnapshotGone as error:
            logger.info("copies begin again: %s", error.what)
            self._release()
            return None
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
        waiting = self._stage(task, copies, journal)
        self._release_unless_stopping()
        return waiting

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
        self._release()
        gone = {
            oid: table.gone_bounds
            for oid in self.claimed
            if (table := self._tables.get(oid)) is not None and table.gone_bounds
        }
        source, snapshot = read_source(self._config, self._looks, snapshot, self.claimed, gone)
        copies = self._plan(source, self._task(snapshot))
        kept = self._keep(snapshot, let_go) if self._is_long(copies) else None
        journal = None
        task = self._task(kept or snapshot)
        if kept is not None:
            journal = CopyJournal(self._journal_path, kept)
            journal.begin()
            for copy in copies:
                if not copy.work.replaces_partitions:
                    journal.plan(task, copy)
        waiting = self._stage(task, copies, journal)
        self._release_unless_stopping()
        return waiting

    def _is_long(self, copies: Sequence[TableCopy]) -> bool:
        """Whether the copies are worth a keeper."""
        size, rate = sum(copy.size_bytes for copy in copies), self._subscription.copy_rate
        return size >= KEPT_FROM_BYTES or (rate is not None and size >= KEPT_FROM_S * rate)

    def _keep(self, snapshot: Snapshot, let_go: Callable[[], None]) -> Snapshot | None:
        """Have the snapshot kept by a process of its own, if that can be."""
        try:
            kept = self._kept.keep(self._config.source.dsn, snapshot)
        except SourceUnreachable as error:
            logger.warning("%s: after an interruption, the copies begin again", error.what)
            return None
        let_go()
        failpoint("copy.kept")
        return kept

    def _release(self) -> None:
        self._kept.release()
        self._journal_path.unlink(missing_ok=True)

    def _release_unless_stopping(self) -> None:
        """What is staged serves the next run, if it comes soon."""
        if not self._is_stopping():
            self._release()

    def _task(self, snapshot: Snapshot) -> CopyTables:
        return CopyTables(
            self._config.source.dsn,
            snapshot,
            Spool.open(self._config.spool.path).identity.spool_id,
            sink_options(self._subscription),
            table_options(self._subscription),
        )

    def _stage(
        self, task: CopyTables, copies: Sequence[TableCopy], journal: CopyJournal | None
    ) -> Failure | None:
        works = {copy.work.facts.oid: copy.work for copy in copies}
        self._counts.wait(self.claimed, "")  # also those that are not copied now
        self._works, self.claimed = works, frozenset()
        copies = self._caught_up(copies, task.snapshot.position)
        self._counts.begin(copies)
        try:
            return self._stage_all(task, copies, journal)
        finally:
            if not self._is_stopping():
                self._counts.given_up(copies)

    def _caught_up(self, copies: Sequence[TableCopy], position: Lsn) -> Sequence[TableCopy]:
        """Bring the targets that get partitions' rows to the snapshot's position.

        Returns:
            the copies, without those of tables of which that failed.
        """
        oids = [copy.work.facts.oid for copy in copies if copy.work.replaces_partitions]
        if not oids:
            return copies
        failures = self._catch_up(oids, position, self._is_stopping)
        with self._tables.changing():
            for copy in copies:
                failure = failures.get(copy.work.facts.oid)
                if failure is not None and self._is_planned(copy.work):
                    self._fail(copy.work.facts.oid, failure)
                    self._works.pop(copy.work.facts.oid, None)
        return [copy for copy in copies if copy.work.facts.oid not in failures]

    def _stage_all(
        self, task: CopyTables, copies: Sequence[TableCopy], journal: CopyJournal | None
    ) -> Failure | None:

        def report(copy: TableCopy, number: int) -> None:
            self._say_waits(copy)
            if copy.locked is not None:
                return
            if journal is not None:
                journal.staged(copy, number)
            self._counts.staged(copy, number)
            failpoint("copy.staged")

        def cores() -> int:
            if journal is not None:
                self._kept.still_needed()
            self._warn_of_age()
            self._counts.wait(self._works, "" if turn.running else self._waits_for_now(turn))
            self._counts.tend()
            return self._cores()

        turn = self._turns.join(self._subscription.name, self._subscription.copy_workers, cores)
        waiting: Failure | None = None
        for copy in stage_tables(
            self._context,
            task.stage_all,
            copies,
            turn,
            self._pace,
            is_wanted=lambda copy: self._waits_for(copy.work),
            report=report,
            is_stopping=self._is_stopping,
        ):
            result = self._finish(task, copy)
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
            if table is not None and table.error != why and self._is_planned(copy.work):
                self._tables.apply(copy.work.facts.oid, CopyWaits(why))

    def _warn_of_age(self) -> None:
        if time.monotonic() >= self._warn_at:
            logger.warning(
                "the snapshot of the copies of %s is held for more than an hour: meanwhile VACUUM "
                "does not remove rows that are deleted or updated",
                self._subscription.name,
            )
            self._warn_at = time.monotonic() + _WARN_AFTER_S

    def _waiting(
        self, source: SourceTables, oids: Collection[int]
    ) -> Iterator[tuple[ReplicatedTable, TableRecord]]:
        """Of these tables, those whose copy was begun, and that are sent."""
        for oid, record in self._tables.record.tables.items():
            is_begun = record.state is TableState.DATA_COPY and awaits_copy(record)
            if is_begun and oid in oids and oid in source.now:
                yield source.now[oid], record

    def _plan(self, source: SourceTables, task: CopyTables) -> list[TableCopy]:
        """Give the tables whose copy was begun their copy numbers."""
        works = []
        with self._tables.changing():
            for oid in self.claimed - source.now.keys():
                record = self._tables.get(oid)
                if record is not None and record.state is TableState.DATA_COPY:
                    self._tables.apply(oid, NotSent())
            for table, _ in list(self._waiting(source, source.locked)):
                locked = TableLocked.by(source.locked[table.facts.oid])
                self._pauses.for_lock(table.facts.oid)
                self._fail(table.facts.oid, Failure.of(locked))
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
        return [
            copy
            for copy in copies
            if not copy.work.replaces_partitions or self._can_replace_partitions(copy, source)
        ]

    def _can_replace_partitions(self, copy: TableCopy, source: SourceTables) -> bool:
        """Whether some partitions of a table can be replaced alone; else the table is copied."""
        oid, record = copy.work.facts.oid, self._tables.get(copy.work.facts.oid)
        known = "" if record is None else record.fingerprint
        in_snapshot = source.fingerprints.get(oid)
        portions = portions_of_partitions(copy.work, copy.portions, known, in_snapshot)
        if portions is None:
            self._tables.apply(oid, Event.LEAVES_GIVEN_UP)
            return False
        copy.portions = portions
        return True

    def _fail(self, oid: int, failure: Failure) -> None:
        """Record why a table's copy, or the load of its partitions, cannot go on."""
        record = self._tables.get(oid)
        is_load = record is not None and record.replaces_partitions
        self._tables.apply(oid, LeavesFailed(failure) if is_load else CopyFailed(failure))

    def _finish(self, task: CopyTables, copy: TableCopy) -> CopyResult | Failure | None:
        """Commit a table whose portions are staged, and record what became of it.

        Returns:
            None if the table does not wait for this copy any more.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        work = copy.work
        with self._tables.lock:
            if not self._waits_for(work):
                logger.info("%s.%s has changed during its copy", work.namespace, work.name)
                self._works.pop(work.facts.oid, None)
                self._counts.given_up([copy])
                return None
            result: CopyResult | Failure | None = copy.failure
            if result is None:
                staged = [part for _, part in sorted(copy.staged.items())]
                result = attempt(lambda parts: task.commit(work, parts), staged)
            failpoint("copy.committed")
            event = copy_event(
                result, work.copy_number, task.snapshot, of_leaves=work.replaces_partitions
            )
            table = self._tables.finish_copy(work.facts.oid, event)
            self._pauses.end([work.facts.oid])
            if isinstance(result, Failure) and result.remedy is Remedy.LATER:
                self._pauses.for_lock(work.facts.oid)
            # One that failed need not wait for this round's end to be tried again.
            self._works.pop(work.facts.oid, None)
        if isinstance(result, Failure) and result.details is not None:
            logger.warning("%s.%s: %s", work.namespace, work.name, result.details)
        if table.state is TableState.COPIED:
            self._counts.committed(copy)
        else:
            self._counts.given_up([copy])
        self._tables.raise_failure()
        return result

    def _waits_for(self, work: CopyWork) -> bool:
        """Whether a table still waits for this very copy.

        The spool may have dropped what follows the snapshot.
        """
        table = self._tables.get(work.facts.oid)
        return (
            table is not None
            and self._is_planned(work)
            and table.applied_through >= SpoolReader(self._config.spool.path).start()
        )

    def _is_planned(self, work: CopyWork) -> bool:
        """Whether a table's record still says that this copy is made.

        A look may have found another name or that it is not sent any more; a user may have asked
        for another copy.
        """
        table = self._tables.get(work.facts.oid)
        return (
            table is not None
            and table.state is TableState.DATA_COPY
            and table.copy_number == work.copy_number
            and table.load_leaves == work.leaves
            and table.gone_bounds == work.gone_bounds
            and table.target_name == (work.namespace, work.name)
        )


def copy_event(
    result: CopyResult | Failure, copy_number: int, snapshot: Snapshot, *, of_leaves: bool = False
) -> TableEvent:
    """The event of a copy's result.

    Args:
        copy_number: the number that the copy was given.
        snapshot: under which it read.
        of_leaves: only partitions were loaded.
    """
    if isinstance(result, Failure):
        return LeavesFailed(result) if of_leaves else CopyFailed(result)
    if of_leaves:
        return LeavesLoaded(snapshot.position, snapshot.timeline, result.version, result.rows)
    if result.copy_number > copy_number:
        return CopySuperseded(result.copy_number)
    return CopyFinished(snapshot.position, snapshot.timeline, result.version, result.rows)
