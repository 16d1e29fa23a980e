"""The copies under one snapshot: what they read, and what becomes of each table.

A long copy has its snapshot kept by a process of its own, and what it has staged is in a journal:
a run that was killed goes on with it (ADR 0029).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import (
    CopyJournal,
    CopyResult,
    CopyTables,
    CopyWork,
    Snapshot,
    SnapshotFile,
    SnapshotGone,
    TableCopy,
    import_snapshot,
    plan_portions,
    stage_tables,
)
from pgsluice.copy.ranges import PORTION_BYTES, WHOLE, Portion
from pgsluice.errors import Failure, Remedy, SourceUnreachable
from pgsluice.events import CopyProgress, MetricsEvent
from pgsluice.failpoints import failpoint
from pgsluice.replication import connect_sql, source_errors
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.spark.tasks import attempt
from pgsluice.spool import Spool, SpoolReader, TableRecord, TableState
from pgsluice.spool.layout import COPY_JOURNAL, COPY_SNAPSHOT, subscription_folder
from pgsluice.subscription.discovery import ReplicatedTable
from pgsluice.subscription.lifecycle import TableEvent
from pgsluice.subscription.look_events import NotSent
from pgsluice.subscription.looks import CatalogLooks
from pgsluice.subscription.options import sink_options, table_options
from pgsluice.subscription.table_events import (
    CopyFailed,
    CopyFinished,
    CopyPlanned,
    CopySuperseded,
)
from pgsluice.subscription.tables import SubscriptionTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

KEPT_FROM_BYTES = 4 * PORTION_BYTES
"""Copies that are worth a keeper: what smaller ones have staged is soon staged again."""
_WARN_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Published:
    """What the publications send.

    Attributes:
        now: the tables by OID.
        fingerprints: those of the tables that a copy's snapshot has.
        portions: of the tables to copy, in that snapshot.
    """

    now: Mapping[int, ReplicatedTable]
    fingerprints: Mapping[int, SourceFingerprint]
    portions: Mapping[int, tuple[Portion, ...]]


class CopyRound:
    """Copies some of a subscription's tables under one snapshot.

    Args:
        session: Spark's session, which is asked for when there is a table to copy.
        most_tasks: how many tasks may read at the same time, asked again and again.
        is_stopping: the round ends soon after it is true.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        looks: CatalogLooks,
        report: Callable[[MetricsEvent], None],
        *,
        most_tasks: Callable[[], int],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._session = session
        self._config = config
        self._subscription = subscription
        self._tables = tables
        self._looks = looks
        self._report = report
        self._most_tasks = most_tasks
        self._is_stopping = is_stopping
        folder = subscription_folder(config.spool.path, subscription.name)
        self._kept = SnapshotFile(folder / COPY_SNAPSHOT)
        self._journal_path = folder / COPY_JOURNAL
        self._warn_at = time.monotonic() + _WARN_AFTER_S

    def resume(self) -> Failure | None:
        """Go on with what an earlier run has staged, if its snapshot is still kept.

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
            source, _ = self._published(snapshot, ())
        except SnapshotGone as error:
            logger.info("copies begin again: %s", error.what)
            self._release()
            return None
        copies = []
        with self._tables.changing():
            for table, record in self._waiting(source):
                copy = journal.restore(task, _work(table, record))
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
        """Copy the tables that wait; each is committed once it is staged.

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
        oids = [oid for oid, record in self._tables.durable.tables.items() if awaits_copy(record)]
        source, snapshot = self._published(snapshot, oids)
        copies = self._plan(source, self._task(snapshot))
        is_long = sum(copy.size_bytes for copy in copies) >= KEPT_FROM_BYTES
        kept = self._keep(snapshot, let_go) if is_long else None
        journal = None
        task = self._task(kept or snapshot)
        if kept is not None:
            journal = CopyJournal(self._journal_path, kept)
            journal.begin()
            for copy in copies:
                journal.plan(task, copy)
        waiting = self._stage(task, copies, journal)
        self._release_unless_stopping()
        return waiting

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
        def report(copy: TableCopy, number: int) -> None:
            if journal is not None:
                journal.staged(copy, number)
            failpoint("copy.staged")
            if not copy.is_staged:
                self._report_rows(copy)

        def most_tasks() -> int:
            self._kept.still_needed()
            self._warn_of_age()
            return self._most_tasks()

        waiting: Failure | None = None
        for copy in stage_tables(
            self._session,
            task.stage_all,
            copies,
            most_tasks,
            rate=self._subscription.copy_rate,
            is_wanted=lambda copy: self._waits_for(copy.work),
            report=report,
            is_stopping=self._is_stopping,
        ):
            result = self._finish(task, copy)
            if isinstance(result, Failure) and result.remedy is Remedy.WAIT:
                waiting = result
        return waiting

    def _warn_of_age(self) -> None:
        if time.monotonic() >= self._warn_at:
            logger.warning(
                "the snapshot of the copies of %s is held for more than an hour: meanwhile VACUUM "
                "does not remove rows that are deleted or updated",
                self._subscription.name,
            )
            self._warn_at = time.monotonic() + _WARN_AFTER_S

    def _published(
        self, snapshot: Snapshot, to_divide: Collection[int]
    ) -> tuple[_Published, Snapshot]:
        """What is sent now, and what the snapshot has.

        Args:
            to_divide: the tables whose portions are asked for.

        Returns:
            it, and the snapshot with what it sees.
        """
        with (
            connect_sql(self._config.source.dsn) as connection,
            source_errors("looking at the tables to copy"),
        ):
            now = {table.facts.oid: table for table in self._looks.source_tables(connection)}
            # What changes after the snapshot has to be seen by the next look.
            seen = import_snapshot(connection, snapshot)
            fingerprints = {
                table.facts.oid: table.fingerprint
                for table in self._looks.source_tables(connection)
            }
            wanted = [now[oid].facts for oid in to_divide if oid in now]
            portions = plan_portions(connection, wanted)
            return _Published(now, fingerprints, portions), seen

    def _waiting(self, source: _Published) -> Iterator[tuple[ReplicatedTable, TableRecord]]:
        """The tables whose copy was begun, and that are sent."""
        for oid, record in self._tables.record.tables.items():
            if record.state is TableState.DATA_COPY and awaits_copy(record) and oid in source.now:
                yield source.now[oid], record

    def _plan(self, source: _Published, task: CopyTables) -> list[TableCopy]:
        """Give the tables whose copy was begun their copy numbers."""
        works = []
        with self._tables.changing():
            for oid, record in self._tables.record.tables.items():
                is_begun = record.state is TableState.DATA_COPY and awaits_copy(record)
                if is_begun and oid not in source.now:
                    self._tables.apply(oid, NotSent())
            for table, _ in self._waiting(source):
                # A table that is newer than the snapshot is refused by the copy's task.
                fingerprint = source.fingerprints.get(table.facts.oid, table.fingerprint)
                planned = CopyPlanned(fingerprint.to_text(), table.relations)
                works.append(_work(table, self._tables.apply(table.facts.oid, planned).table))
                self._looks.set_rules(table)
        return [_copy_of(task, work, source.portions.get(work.facts.oid, WHOLE)) for work in works]

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
                return None
            result: CopyResult | Failure | None = copy.failure
            if result is None:
                staged = [part for _, part in sorted(copy.staged.items())]
                result = attempt(lambda parts: task.commit(work, parts), staged)
            failpoint("copy.committed")
            event = copy_event(result, work.copy_number, task.snapshot)
            table = self._tables.finish_copy(work.facts.oid, event)
        if isinstance(result, Failure) and result.details is not None:
            logger.warning("%s.%s: %s", work.namespace, work.name, result.details)
        if table.state is TableState.COPIED:
            self._report_rows(copy, is_done=True)
        self._tables.raise_failure()
        return result

    def _waits_for(self, work: CopyWork) -> bool:
        """Whether a table still waits for this very copy.

        A look may have found another name or that it is not sent any more; a user may have asked
        for another copy; the spool may have dropped what follows the snapshot.
        """
        table = self._tables.get(work.facts.oid)
        return (
            table is not None
            and table.state is TableState.DATA_COPY
            and table.copy_number == work.copy_number
            and table.target_name == (work.namespace, work.name)
            and table.applied_through >= SpoolReader(self._config.spool.path).start()
        )

    def _report_rows(self, copy: TableCopy, *, is_done: bool = False) -> None:
        work, name = copy.work, self._subscription.name
        expected = copy.rows if is_done else copy.expected_rows
        self._report(
            CopyProgress(name, work.namespace, work.name, copy.rows, expected, is_done=is_done)
        )


def _copy_of(task: CopyTables, work: CopyWork, portions: tuple[Portion, ...]) -> TableCopy:
    """A table's copy, in one portion if its sink cannot stage."""
    if len(portions) > 1 and attempt(task.can_stage, work) is not True:
        reads = tuple(read for portion in portions for read in portion)
        portions = (reads,)
    return TableCopy(work, portions)


def copy_event(result: CopyResult | Failure, copy_number: int, snapshot: Snapshot) -> TableEvent:
    """The event of a copy's result.

    Args:
        copy_number: the number that the copy was given.
        snapshot: under which it read.
    """
    if isinstance(result, Failure):
        return CopyFailed(result)
    if result.copy_number > copy_number:
        return CopySuperseded(result.copy_number)
    return CopyFinished(snapshot.position, snapshot.timeline, result.version, result.rows)


def awaits_copy(record: TableRecord) -> bool:
    """Whether a table waits for a copy from the source, and not from the target that it had."""
    return record.is_to_copy and record.old_target is None


def _work(table: ReplicatedTable, record: TableRecord) -> CopyWork:
    return CopyWork(
        facts=table.facts,
        namespace=record.namespace,
        name=record.name,
        columns=table.columns,
        row_filter=table.row_filter,
        unlisted=table.unlisted,
        key_problem=table.key_problem,
        copy_number=record.copy_number,
        predecessor_oids=record.predecessor_oids,
        may_replace_foreign_target=record.may_replace_foreign_target,
    )
