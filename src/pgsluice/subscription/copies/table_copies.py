"""Copies of a subscription's tables: the threads of its copy runs, and copies of renamed tables.

:mod:`pgsluice.subscription.lifecycle.transitions` has a table's states during a copy. Copies run in
their own threads and without the tables' lock, so other tables continue while a copy waits for a
snapshot or reads rows. The lock is held only to start, to plan and to commit a copy. By then, a
catalog refresh, a user or the spool's size limit may have changed the table's state: the staged
rows are committed only if the table still needs this very copy (ADR 0028).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial

from pgsluice.config import SubscriptionConfig
from pgsluice.copy.renamed import CopyRenamed
from pgsluice.errors import Failure, Remedy
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spark.jobs.tasks import run_tasks
from pgsluice.spool import Spool, TableState
from pgsluice.spool.segments.retention import limit_words
from pgsluice.subscription.base.options import sink_options, table_options
from pgsluice.subscription.copies.copy_run import CopyRun
from pgsluice.subscription.copies.kept import HeldSnapshot
from pgsluice.subscription.copies.portion_queue import LOCK_PATIENCE_S
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.lifecycle.look_events import OldTargetCopied
from pgsluice.subscription.lifecycle.table_events import CopyAbandoned, CopyFailed, HoldReleased
from pgsluice.subscription.lifecycle.transitions import TableEvent
from pgsluice.system.threads import WorkThread

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_MOST_RUNS = 8
"""How many copy runs can read at the same time: one, and one for tables that were added later."""


class TableCopies:
    """Copies the tables that wait for a copy."""

    def __init__(self, site: CopySite) -> None:
        self._site = site
        self._waits_until = 0.0
        self._threads: dict[int, WorkThread] = {}
        self._first: HeldSnapshot | None = None

    def take_over(self, settings: SubscriptionConfig) -> None:
        """Use other settings from now on."""
        self._site.share.settings = settings

    @property
    def is_running(self) -> bool:
        """Whether copies run beside the batches."""
        return any(thread.is_alive() for thread in self._threads.values())

    @property
    def uses_first_snapshot(self) -> bool:
        """Whether the snapshot of a new slot is still being read."""
        return self._first is not None and self._first.is_held

    def pending(self) -> list[int]:
        """The tables that wait for a copy from the source, or whose copy runs."""
        return self._site.pending.all()

    def waiting(self) -> list[int]:
        """The tables whose copies may start now: no copy run has them."""
        return self._site.pending.next()

    def tend(self, stop: threading.Event, first: Snapshot | None = None) -> None:
        """Start a thread that copies the waiting tables, if there are any; returns at once.

        Tables that are added while large tables are copied get another copy run.

        Args:
            stop: the copies end soon after it is set.
            first: the snapshot of the new slot, for the very first copies.

        Raises:
            BaseException: the error that ended an earlier thread: see :meth:`run`.
        """
        self._copy_renamed()
        for number, thread in list(self._threads.items()):
            if not thread.is_alive():
                del self._threads[number]
                thread.raise_error()
        if stop.is_set():
            return
        self._site.pending.ask_for_locks(self._site.config.source.conninfo)
        if not self.waiting():
            return
        for run in self._free_runs(stop):
            if not self.waiting():
                return
            held = None if first is None else HeldSnapshot(first)
            self._first, first = held or self._first, None
            run.claim()
            name = f"pgsluice copies of {self._site.share.settings.name}"
            thread = WorkThread(name, partial(self._copy_all, run, held))
            self._threads[run.number] = thread
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the running copies."""
        for thread in self._threads.values():
            thread.join(timeout_s)

    def run(self, first: Snapshot | None = None, stop: threading.Event | None = None) -> None:
        """Copy all waiting tables: first renamed ones, which need no snapshot.

        It waits a while for locked tables, but only once in a run.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceRefused: no snapshot can be taken.
            SourceUnreachable, TargetUnreachable: no connection, or the store fails.
        """
        self._copy_renamed()
        stop = stop or threading.Event()
        self._copy_waiting(first, stop)
        self._waits_until = self._waits_until or time.monotonic() + LOCK_PATIENCE_S
        pending = self._site.pending
        while pending.locked() and time.monotonic() < self._waits_until and not stop.is_set():
            time.sleep(_POLL_S)
            pending.ask_for_locks(self._site.config.source.conninfo)
            self._copy_waiting(None, stop)

    def _copy_waiting(self, first: Snapshot | None, stop: threading.Event) -> None:
        """Copy the waiting tables: first those whose copies an earlier run has started."""
        runs = self._free_runs(stop, is_alone=True)
        begun = [run for run in runs if run.is_begun]
        with ExitStack() as needed:
            for run in begun:
                needed.enter_context(run.kept.needed())
            for run in begun:
                run.claim()
                try:
                    run.resume()
                finally:
                    self._site.pending.end(run.number)
        self._copy_all(runs[0], None if first is None else HeldSnapshot(first))

    def _free_runs(self, stop: threading.Event, *, is_alone: bool = False) -> list[CopyRun]:
        """The copy runs that may start: first those that resume copies of an earlier run."""
        runs = [
            CopyRun(self._site, number, stop, is_alone=is_alone)
            for number in range(_MOST_RUNS)
            if number not in self._threads
        ]
        return sorted(runs, key=lambda run: not run.is_begun)

    def _copy_all(self, run: CopyRun, first: HeldSnapshot | None) -> None:
        try:
            run.copy_all(first)
        finally:
            self._site.pending.end(run.number)
            if first is not None:
                first.let_go()

    def put_off(self, oid: int) -> None:
        """Postpone a table whose copy the spool has no room for, and record the reason.

        The copy was given up, and its retention pin was dropped.
        """
        pause_s = self._site.pending.wait_for_room(oid)
        begins = datetime.now(UTC) + timedelta(seconds=pause_s)
        full, more_room = limit_words(self._site.config.spool.max_bytes)
        self._site.tables.apply(
            oid,
            HoldReleased(
                f"{full}, so pgsluice has cancelled the copy of the table, and restarts it at "
                f"{begins:%H:%M:%S} UTC\n"
                f"  → {more_room}: the spool has to hold the changes that are committed "
                "during the copy"
            ),
        )

    def _copy_renamed(self) -> None:
        """Copy renamed tables from their previous targets.

        All in one job, before a batch is applied to any of these targets: the upkeep after a batch
        might delete files of the version to copy.
        """
        tables, settings = self._site.tables, self._site.share.settings
        with tables.lock:
            works = [
                (oid, table)
                for oid, table in tables.unfinished.items()
                if table.state is TableState.DATA_COPY and table.old_target is not None
            ]
            if not works:
                return
            failpoint("copy.before_renamed")
            task = CopyRenamed(
                Spool.open(self._site.config.spool.place).identity.spool_id,
                sink_options(settings),
                table_options(settings),
            )
            spark, workers = self._site.share.scheduler.spark(), settings.copy_workers
            outcomes = run_tasks(spark, task.run, works, most_tasks=workers)
            failpoint("copy.after_renamed")
            with tables.changing():
                for (oid, table), version in outcomes:
                    tables.apply(oid, renamed_event(version, table.committed))
        tables.raise_failure()


def renamed_event(result: int | Failure | None, position: Lsn) -> TableEvent:
    """The event that follows from a renamed table's result; a failure that a copy from the source
    can solve leads to that copy.

    Args:
        position: the position up to which the old target was applied.
    """
    match result:
        case int():
            return OldTargetCopied(position, result)
        case Failure(remedy=Remedy.PARK | Remedy.STOP):
            return CopyFailed(result)
        case Failure():
            logger.info("a renamed table is copied from the source: %s", result.message)
    return CopyAbandoned("it was renamed, and its old target cannot be copied")
