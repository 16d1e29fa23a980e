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
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import (
    CopyRenamed,
    Snapshot,
    temporary_snapshot,
)
from pgsluice.errors import Failure, Remedy, SourceUnreachable, TargetUnreachable
from pgsluice.events import MetricsEvent
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spark.tasks import run_tasks, tasks_at_once
from pgsluice.spool import Spool, TableState
from pgsluice.subscription.copy_round import CopyRound, awaits_copy
from pgsluice.subscription.lifecycle import TableEvent
from pgsluice.subscription.looks import CatalogLooks
from pgsluice.subscription.name_events import OldTargetCopied, OldTargetUnusable
from pgsluice.subscription.options import sink_options
from pgsluice.subscription.table_events import (
    COPY_ATTEMPTS,
    CopyBegun,
    CopyFailed,
)
from pgsluice.subscription.tables import SubscriptionTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SNAPSHOT_TIMEOUT_S = 300.0


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
        return [oid for oid, table in self._tables.durable.tables.items() if awaits_copy(table)]

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
        is_stopping = stop.is_set if stop is not None else bool
        round_ = CopyRound(
            self._session,
            self._config,
            self._subscription,
            self._tables,
            self._looks,
            self._report,
            most_tasks=self._most_tasks,
            is_stopping=is_stopping,
        )
        if self.pending():
            round_.resume()
        for number in range(1, COPY_ATTEMPTS + 1):
            if not self.pending() or is_stopping():
                return
            self._begin()
            with ExitStack() as held:
                snapshot = first or held.enter_context(
                    temporary_snapshot(self._config.source.dsn, SNAPSHOT_TIMEOUT_S, is_stopping)
                )
                waiting = round_.run(snapshot, partial(self._let_go, held))
            self._let_go(held)
            first = None
            if waiting is not None and number == COPY_ATTEMPTS:
                kind = TargetUnreachable if waiting.is_of_target else SourceUnreachable
                raise kind.of_text(waiting.message)

    def _let_go(self, held: ExitStack) -> None:
        """Give up the connection that exported the snapshot, and so its slot."""
        held.close()
        self._uses_first = False

    def _most_tasks(self) -> int:
        """How many tasks may read at the same time: beside a stream, a share of the cores."""
        cores = tasks_at_once(self._session())
        if self.is_running and any(t.is_active for t in self._tables.durable.tables.values()):
            cores = self._subscription.copy_cores or max(1, cores // 2)
        return min(self._subscription.copy_workers, cores)

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
                if awaits_copy(table):
                    self._tables.apply(oid, CopyBegun(self._tables.position))


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
