"""Copies of a subscription's tables: which are due, and their snapshots and tasks.

A table's states on the way are those of :mod:`pgsluice.subscription.lifecycle`. A snapshot may
have to wait for open transactions at the source. The other tables go on meanwhile; they wait
while rows are copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    import_snapshot,
    temporary_snapshot,
)
from pgsluice.errors import Failure, Remedy, SourceUnreachable, TargetUnreachable
from pgsluice.events import CopyProgress, MetricsEvent
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.spark.tasks import run_tasks
from pgsluice.spool import Spool, TableRecord, TableState
from pgsluice.subscription.copy_progress import report_progress
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
    """

    now: Mapping[int, ReplicatedTable]
    fingerprints: Mapping[int, SourceFingerprint]


class TableCopies:
    """Copies the tables that wait for it.

    Args:
        session: Spark's session, which is asked for when there is a table to copy.
        tables: its tables; their lock is held while rows are copied.
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

    def pending(self) -> list[int]:
        """The tables that wait for a copy."""
        return [oid for oid, table in self._tables.durable.tables.items() if table.is_to_copy]

    def run(self, first: Snapshot | None = None, stop: threading.Event | None = None) -> None:
        """Copy all tables that wait: first those that were renamed, which need no snapshot.

        Args:
            first: the new slot's own snapshot, for the first copies of all.
            stop: give up between attempts when it is set.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceRefused: no snapshot can be had.
            SourceUnreachable, TargetUnreachable: no connection, or a store that fails.
        """
        self._copy_renamed()
        for attempt in range(1, COPY_ATTEMPTS + 1):
            if not self.pending() or (stop is not None and stop.is_set()):
                return
            self._begin()
            with self._snapshot(first if attempt == 1 else None, stop) as snapshot:
                source = self._published(snapshot)
                with self._tables.lock:
                    self._copy(snapshot, source, is_last=attempt == COPY_ATTEMPTS)

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
            for oid in self.pending():
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

    def _copy(self, snapshot: Snapshot, source: _Published, *, is_last: bool) -> None:
        works = self._plan(source)
        dsn, name = self._config.source.dsn, self._subscription.name
        task = CopyTables(
            dsn,
            snapshot,
            Spool.open(self._config.spool.path).identity.spool_id,
            sink_options(self._subscription),
            table_options(self._subscription),
        )
        with report_progress(dsn, name, works, self._report):
            workers = self._subscription.copy_workers
            outcomes = run_tasks(self._session(), task.run, works, most_tasks=workers)
        self._record(outcomes, snapshot, is_last=is_last)

    def _published(self, snapshot: Snapshot) -> _Published:
        """What is sent now, and the fingerprints under the snapshot."""
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
            return _Published(now, fingerprints)

    def _plan(self, source: _Published) -> list[CopyWork]:
        """The work of one attempt."""
        works = []
        with self._tables.changing():
            for oid, record in self._tables.record.tables.items():
                if record.state is not TableState.DATA_COPY:
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
        return works

    def _record(
        self,
        outcomes: Sequence[tuple[CopyWork, CopyResult | Failure]],
        snapshot: Snapshot,
        *,
        is_last: bool,
    ) -> None:
        """Record what the copies' tasks did.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceUnreachable, TargetUnreachable: the last attempt lost the server, or the store.
        """
        waiting: Failure | None = None
        with self._tables.changing():
            for work, result in outcomes:
                if isinstance(result, Failure) and result.details is not None:
                    logger.warning("%s.%s: %s", work.namespace, work.name, result.details)
                self._tables.apply(work.facts.oid, copy_event(result, work.copy_number, snapshot))
                if isinstance(result, Failure) and result.remedy is Remedy.WAIT and is_last:
                    waiting = result
        for work, result in outcomes:
            record = self._tables.get(work.facts.oid)
            is_copied = record is not None and record.state is TableState.COPIED
            if is_copied and isinstance(result, CopyResult):
                rows, name = result.rows, self._subscription.name
                self._report(
                    CopyProgress(name, work.namespace, work.name, rows, rows, is_done=True)
                )
        self._tables.raise_failure()
        if waiting is not None:
            kind = TargetUnreachable if waiting.is_of_target else SourceUnreachable
            raise kind.of_text(waiting.message)


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
