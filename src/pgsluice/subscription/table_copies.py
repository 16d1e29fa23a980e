"""Copies of a subscription's tables: which are due, and their snapshots and tasks.

A table's states on the way are those of :mod:`pgsluice.subscription.lifecycle`. Copies run in a
thread of their own and without the tables' lock, so the other tables go on while they wait for a
snapshot and while rows are read. The lock is held to begin, to plan, and to commit a table. By
then a look, a user or the spool's size limit may have changed what is to become of the table: what
was staged for it is committed only if it still waits for this very copy (ADR 0028).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import (
    CopyRenamed,
    CopyResult,
    CopyTables,
    CopyWork,
    Snapshot,
    TableCopy,
    import_snapshot,
    plan_portions,
    stage_tables,
    temporary_snapshot,
)
from pgsluice.copy.ranges import WHOLE, Portion
from pgsluice.errors import Failure, Remedy, SourceUnreachable, TargetUnreachable
from pgsluice.events import CopyProgress, MetricsEvent
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.spark.tasks import attempt, run_tasks, tasks_at_once
from pgsluice.spool import Spool, SpoolReader, TableRecord, TableState
from pgsluice.subscription.discovery import ReplicatedTable
from pgsluice.subscription.lifecycle import TableEvent
from pgsluice.subscription.look_events import NotSent
from pgsluice.subscription.looks import CatalogLooks
from pgsluice.subscription.name_events import OldTargetCopied, OldTargetUnusable
from pgsluice.subscription.options import sink_options, table_options
from pgsluice.subscription.table_events import (
    COPY_ATTEMPTS,
    CopyBegun,
    CopyFailed,
    CopyFinished,
    CopyPlanned,
    CopySuperseded,
)
from pgsluice.subscription.tables import SubscriptionTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SNAPSHOT_TIMEOUT_S = 300.0


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


class TableCopies:
    """Copies the tables that wait for it.

    Args:
        session: Spark's session, which is asked for when there is a table to copy.
        tables: its tables.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        looks: CatalogLooks,
        report: Callable[[MetricsEvent], None],
    ) -> None:
        self._session = session
        self._config = config
        self._subscription = subscription
        self._tables = tables
        self._looks = looks
        self._report = report
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._uses_first = False

    @property
    def is_running(self) -> bool:
        """Whether tables are being copied beside the stream."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def uses_first_snapshot(self) -> bool:
        """Whether a new slot's own snapshot is still read."""
        return self._uses_first

    def pending(self) -> list[int]:
        """The tables that wait for a copy from the source."""
        return [
            oid
            for oid, table in self._tables.durable.tables.items()
            if table.is_to_copy and table.old_target is None
        ]

    def tend(self, stop: threading.Event, first: Snapshot | None = None) -> None:
        """Copy the tables that wait in a thread of its own, if there are any; does not wait.

        Args:
            stop: the copies end soon after it is set.
            first: the new slot's own snapshot, for the first copies of all.

        Raises:
            BaseException: what ended the thread before: see :meth:`run`.
        """
        self._copy_renamed()
        if self.is_running:
            return
        self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self.pending() or stop.is_set():
            return
        self._uses_first = first is not None
        self._thread = threading.Thread(
            target=self._run,
            args=(first, stop),
            name=f"pgsluice copies of {self._subscription.name}",
            daemon=True,
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the copies that run."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, first: Snapshot | None, stop: threading.Event) -> None:
        try:
            self._copy_all(first, stop)
        except BaseException as error:
            self._failure = error
        finally:
            self._uses_first = False

    def run(self, first: Snapshot | None = None, stop: threading.Event | None = None) -> None:
        """Copy all tables that wait: first those that were renamed, which need no snapshot.

        Args:
            first: the new slot's own snapshot, for the first copies of all.
            stop: give up soon after it is set.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceRefused: no snapshot can be had.
            SourceUnreachable, TargetUnreachable: no connection, or a store that fails.
        """
        self._copy_renamed()
        self._copy_all(first, stop)

    def _copy_all(self, first: Snapshot | None, stop: threading.Event | None) -> None:
        for number in range(1, COPY_ATTEMPTS + 1):
            if not self.pending() or (stop is not None and stop.is_set()):
                return
            self._begin()
            with self._snapshot(first if number == 1 else None, stop) as snapshot:
                self._copy(snapshot, stop, is_last=number == COPY_ATTEMPTS)
            self._uses_first = False

    def _copy_renamed(self) -> None:
        """Copy renamed tables from the targets that they had.

        All in one job, before a batch is applied to any of these targets: maintenance after it
        might delete what older versions need.

        Raises:
            SinkError: the target as a whole cannot be used.
        """
        with self._tables.lock:
            works = [
                (oid, table)
                for oid, table in self._tables.record.tables.items()
                if table.state is TableState.DATA_COPY and table.old_target is not None
            ]
            if not works:
                return
            failpoint("copy.before_renamed")
            task = CopyRenamed(
                Spool.open(self._config.spool.path).identity.spool_id,
                sink_options(self._subscription),
            )
            workers = self._subscription.copy_workers
            outcomes = run_tasks(self._session(), task.run, works, most_tasks=workers)
            failpoint("copy.after_renamed")
            with self._tables.changing():
                for (oid, table), version in outcomes:
                    self._tables.apply(oid, renamed_event(version, table.committed))
        self._tables.raise_failure()

    def _begin(self) -> None:
        """Set state ``d`` durably before the snapshot: the spool then keeps what follows it."""
        with self._tables.changing():
            for oid, table in self._tables.record.tables.items():
                if table.is_to_copy and table.old_target is None:
                    self._tables.apply(oid, CopyBegun(self._tables.position))

    @contextmanager
    def _snapshot(self, first: Snapshot | None, stop: threading.Event | None) -> Iterator[Snapshot]:
        if first is not None:
            yield first
            return
        is_stopping = stop.is_set if stop is not None else bool
        with temporary_snapshot(
            self._config.source.dsn, SNAPSHOT_TIMEOUT_S, is_stopping
        ) as snapshot:
            yield snapshot

    def _copy(self, snapshot: Snapshot, stop: threading.Event | None, *, is_last: bool) -> None:
        """Copy the tables that wait under one snapshot; each is committed once it is staged.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceUnreachable, TargetUnreachable: the last attempt lost the server, or the store.
        """
        task = CopyTables(
            self._config.source.dsn,
            snapshot,
            Spool.open(self._config.spool.path).identity.spool_id,
            sink_options(self._subscription),
            table_options(self._subscription),
        )
        copies = self._plan(self._published(snapshot), task)
        waiting: Failure | None = None
        is_stopping = stop.is_set if stop is not None else bool
        for copy in stage_tables(
            self._session,
            task.stage_all,
            copies,
            self._most_tasks,
            is_wanted=lambda copy: self._waits_for(copy.work),
            report=self._report_rows,
            is_stopping=is_stopping,
        ):
            result = self._finish(task, copy)
            if isinstance(result, Failure) and result.remedy is Remedy.WAIT:
                waiting = result
        if waiting is not None and is_last:
            kind = TargetUnreachable if waiting.is_of_target else SourceUnreachable
            raise kind.of_text(waiting.message)

    def _most_tasks(self) -> int:
        """How many tasks may read at the same time: beside a stream, a share of the cores."""
        cores = tasks_at_once(self._session())
        if self.is_running and any(t.is_active for t in self._tables.durable.tables.values()):
            cores = self._subscription.copy_cores or max(1, cores // 2)
        return min(self._subscription.copy_workers, cores)

    def _published(self, snapshot: Snapshot) -> _Published:
        """What is sent now; and of the tables to copy, what the snapshot has."""
        with (
            connect_sql(self._config.source.dsn) as connection,
            source_errors("looking at the tables to copy"),
        ):
            now = {table.facts.oid: table for table in self._looks.source_tables(connection)}
            # What changes after the snapshot has to be seen by the next look.
            import_snapshot(connection, snapshot.name)
            fingerprints = {
                table.facts.oid: table.fingerprint
                for table in self._looks.source_tables(connection)
            }
            wanted = [now[oid].facts for oid in self.pending() if oid in now]
            return _Published(now, fingerprints, plan_portions(connection, wanted))

    def _plan(self, source: _Published, task: CopyTables) -> list[TableCopy]:
        """The work of one attempt."""
        works = []
        with self._tables.changing():
            for oid, record in self._tables.record.tables.items():
                if record.state is not TableState.DATA_COPY or record.old_target is not None:
                    continue
                table = source.now.get(oid)
                if table is None:
                    self._tables.apply(oid, NotSent())
                    continue
                # A table that is newer than the snapshot is refused by the copy's task.
                fingerprint = source.fingerprints.get(oid, table.fingerprint)
                planned = CopyPlanned(fingerprint.to_text(), table.relations)
                works.append(_work(table, self._tables.apply(oid, planned).table))
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
        expected = copy.rows if is_done else None
        self._report(
            CopyProgress(name, work.namespace, work.name, copy.rows, expected, is_done=is_done)
        )


def _copy_of(task: CopyTables, work: CopyWork, portions: tuple[Portion, ...]) -> TableCopy:
    """A table's copy, in one portion if its sink cannot stage."""
    if len(portions) > 1 and attempt(task.can_stage, work) is not True:
        reads = tuple(read for portion in portions for read in portion)
        portions = (reads,)
    return TableCopy(work, portions)


def renamed_event(result: int | Failure | None, position: Lsn) -> TableEvent:
    """The event of a renamed table's result; what can be mended by reading the source is.

    Args:
        position: up to which the old target was applied.
    """
    match result:
        case int():
            return OldTargetCopied(position, result)
        case Failure(remedy=Remedy.PARK | Remedy.STOP):
            return CopyFailed(result)
        case Failure():
            logger.info("a renamed table is copied from the source: %s", result.message)
    return OldTargetUnusable()


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
