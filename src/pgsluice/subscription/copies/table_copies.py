"""Copies of a subscription's tables: which are due, and their snapshots and tasks.

A table's states on the way are those of :mod:`pgsluice.subscription.lifecycle.transitions`. Copies
run in a thread of their own and without the tables' lock, so the other tables go on while they wait
for a snapshot and while rows are read. The lock is held to begin, to plan, and to commit a table.
By then a look, a user or the spool's size limit may have changed what is to become of the table:
what was staged for it is committed only if it still waits for this very copy (ADR 0028).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from pgsluice.catalog import locked_tables
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import LOCK_PATIENCE_S, CopyCounts, CopyPace, CopyRenamed, CopyTurns
from pgsluice.errors import Failure, Remedy, SourceUnreachable, SpoolFull, TargetUnreachable
from pgsluice.events import MetricsEvent
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots import Snapshot, TableLocked
from pgsluice.spark.jobs.tasks import run_tasks, tasks_at_once
from pgsluice.spool import Spool, TableState
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.base.options import copy_tasks_beside_stream, sink_options
from pgsluice.subscription.base.received import Received
from pgsluice.subscription.copies.fresh_stream import behind_partitions
from pgsluice.subscription.copies.partitions import CatchUp, say_whole_is_next
from pgsluice.subscription.copies.pauses import CopyPauses
from pgsluice.subscription.copies.plan import awaits_copy, new_snapshot
from pgsluice.subscription.copies.rounds import CopyRound
from pgsluice.subscription.lifecycle.name_events import OldTargetCopied
from pgsluice.subscription.lifecycle.table_events import (
    COPY_ATTEMPTS,
    CopyAbandoned,
    CopyFailed,
    CopyWaits,
    HoldReleased,
)
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.lifecycle.transitions import TableEvent
from pgsluice.subscription.refresh.looks import CatalogLooks

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_MOST_ROUNDS = 8
"""How many snapshots are read at the same time: one, and those of tables that came later."""


class TableCopies:
    """Copies the tables that wait for it.

    Args:
        context: Spark's, which is asked for when there is a table to copy.
        tables: its tables.
        turns: all copies of the run.
        received: the run's capture.
        catch_up: applies changes to tables in state ``d``.
    """

    def __init__(
        self,
        context: Callable[[], SparkContext],
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        looks: CatalogLooks,
        report: Callable[[MetricsEvent], None],
        turns: CopyTurns,
        received: Received,
        catch_up: CatchUp,
    ) -> None:
        self._context = context
        self._config = config
        self.subscription = subscription
        self._tables = tables
        self._looks = looks
        self._turns = turns
        self._received = received
        self._catch_up = catch_up
        self._pace = CopyPace(subscription.copy_rate)
        self._pauses = CopyPauses()
        self._waits_until = 0.0
        folder = subscription_folder(config.spool.path, subscription.name)
        self._counts = CopyCounts(
            subscription.name, folder, report, most_bytes_per_s=subscription.copy_rate
        )
        self._running: list[_CopyThread] = []
        turns.streams.append(self._is_streaming)

    @property
    def is_running(self) -> bool:
        """Whether tables are being copied beside the stream."""
        return any(thread.is_alive() for thread in self._running)

    @property
    def uses_first_snapshot(self) -> bool:
        """Whether a new slot's own snapshot is still read."""
        return any(thread.uses_first for thread in self._running if thread.is_alive())

    def pending(self) -> list[int]:
        """The tables that wait for a copy from the source, or for one to end."""
        return [oid for oid, table in self._tables.unfinished.items() if awaits_copy(table)]

    def tend(self, stop: threading.Event, first: Snapshot | None = None) -> None:
        """Copy the tables that wait in a thread of its own, if there are any; does not wait.

        What comes while large tables are copied has a round of its own.

        Args:
            stop: the copies end soon after it is set.
            first: the new slot's own snapshot, for the first copies of all.

        Raises:
            BaseException: what ended a thread before: see :meth:`run`.
        """
        self._copy_renamed()
        for thread in [thread for thread in self._running if not thread.is_alive()]:
            self._running.remove(thread)
            if thread.failure is not None:
                raise thread.failure
        if stop.is_set():
            return
        self._ask_for_locks()
        if not self.waiting():
            return
        for round_ in self._free_rounds(stop.is_set):
            if not self.waiting():
                return
            thread = _CopyThread(
                self.subscription.name,
                round_,
                first is not None,
                partial(self._copy_all, round_, first, stop.is_set),
            )
            self._running.append(thread)
            first = None
            self._claim(round_)
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the copies that run."""
        for thread in self._running:
            thread.join(timeout_s)

    def run(self, first: Snapshot | None = None, stop: threading.Event | None = None) -> None:
        """Copy all tables that wait: first those that were renamed, which need no snapshot.

        A table that is locked is waited for a while, but only once in a run.

        Args:
            first: the new slot's own snapshot, for the first copies of all.
            stop: give up soon after it is set.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceRefused: no snapshot can be had.
            SourceUnreachable, TargetUnreachable: no connection, or a store that fails.
        """
        self._copy_renamed()
        is_stopping = stop.is_set if stop is not None else bool
        self._copy_waiting(first, is_stopping)
        self._waits_until = self._waits_until or time.monotonic() + LOCK_PATIENCE_S
        while self._pauses.locked() and time.monotonic() < self._waits_until and not is_stopping():
            time.sleep(_POLL_S)
            self._ask_for_locks()
            self._copy_waiting(None, is_stopping)

    def _copy_waiting(self, first: Snapshot | None, is_stopping: Callable[[], bool]) -> None:
        """Copy the tables that wait: first those that an earlier run has begun."""
        rounds = self._free_rounds(is_stopping, is_alone=True)
        begun = [round_ for round_ in rounds if round_.begun_before()]
        with ExitStack() as held:
            for round_ in begun:
                held.enter_context(round_.needs_snapshot())
            for round_ in begun:
                self._claim(round_)
                round_.resume()
        self._copy_all(rounds[0], first, is_stopping)

    def _free_rounds(
        self, is_stopping: Callable[[], bool], *, is_alone: bool = False
    ) -> list[CopyRound]:
        """Rounds that may be begun: first those that go on with what an earlier run has begun.

        Args:
            is_alone: nothing is streamed meanwhile.
        """
        taken = {thread.round.number for thread in self._running}
        rounds = [
            self._round(number, is_stopping, is_alone=is_alone)
            for number in range(_MOST_ROUNDS)
            if number not in taken
        ]
        return sorted(rounds, key=lambda round_: not round_.begun_before())

    def _round(self, number: int, is_stopping: Callable[[], bool], *, is_alone: bool) -> CopyRound:
        def cores() -> int:
            most = tasks_at_once(self._context())
            return most if is_alone else self._beside_stream(most)

        return CopyRound(
            self._context,
            self._config,
            self.subscription,
            self._tables,
            self._looks,
            self._counts,
            self._pauses,
            self._turns,
            self._pace,
            self._received,
            self._catch_up,
            number=number,
            cores=cores,
            is_stopping=is_stopping,
        )

    def _claim(self, round_: CopyRound) -> None:
        """Have a round copy the tables that wait; of one that goes on, only its own."""
        with self._tables.lock:
            waiting, begun = self.waiting(round_), round_.begun_before()
            round_.claim(begun.intersection(waiting) or waiting, self.subscription)

    def _copy_all(
        self,
        round_: CopyRound,
        first: Snapshot | None,
        is_stopping: Callable[[], bool],
        thread: _CopyThread | None = None,
    ) -> None:
        """Copy the tables that a round has claimed, and then those that wait."""

        def let_go(held: ExitStack) -> None:
            """Give up the connection that exported the snapshot, and so its slot."""
            held.close()
            if thread is not None:
                thread.uses_first = False

        round_.resume()
        for number in range(1, COPY_ATTEMPTS + 1):
            with self._tables.lock:
                round_.claim(self.waiting(round_), self.subscription)
                if not round_.claimed or is_stopping():
                    return
                round_.begin()
                if first is not None and first.position < self._tables.position:
                    # Copies have begun again, and the spool need not have what follows it.
                    first = None
            with ExitStack() as held:
                try:
                    snapshot = first or held.enter_context(
                        self._snapshot(round_.claimed, is_stopping)
                    )
                except SpoolFull as error:
                    self._give_way(round_.claimed, error)
                    return
                if snapshot is None:
                    return
                failure = round_.run(snapshot, partial(let_go, held))
                let_go(held)
            first = None
            if failure is not None and number == COPY_ATTEMPTS:
                kind = TargetUnreachable if failure.is_of_target else SourceUnreachable
                raise kind.of_text(failure.message)

    def _snapshot(
        self, oids: frozenset[int], is_stopping: Callable[[], bool]
    ) -> AbstractContextManager[Snapshot | None]:
        """A snapshot for these tables; None: the run ends."""
        dsn, counts = self._config.source.dsn, self._counts
        take = partial(new_snapshot, dsn, counts, oids, is_stopping)
        if self._looks.has_aware_streams:
            return take()

        def say(what: str) -> None:
            counts.wait(oids, what)

        def tend() -> bool:
            counts.tend()  # or what is said would be taken for old
            return is_stopping()

        return behind_partitions(dsn, oids, self._received, take, say, tend)

    def _give_way(self, oids: Collection[int], full: SpoolFull) -> None:
        """Have tables hold nothing of a spool that has no room until there is some."""
        with self._tables.changing():
            for oid in oids:
                before = self._tables.get(oid)
                table = self._tables.apply(oid, HoldReleased(str(full))).table
                if before is not None and before.replaces_partitions:
                    say_whole_is_next(table, Failure.of(full))

    def waiting(self, round_: CopyRound | None = None) -> list[int]:
        """The tables whose copies may begin now: no other round copies them."""
        others = [thread.round for thread in self._running if thread.is_alive()]
        return [
            oid
            for oid, table in self._tables.unfinished.items()
            if awaits_copy(table)
            and not self._pauses.waits(oid, table)
            and not any(other.copies(oid) for other in others if other is not round_)
        ]

    def _ask_for_locks(self) -> None:
        """Find out which of the tables that wait for a lock can be read now.

        Raises:
            SourceUnreachable: no connection.
        """
        tables, to_ask = self._tables.durable.tables, self._pauses.to_ask()
        waiting = {
            oid: tables[oid]
            for oid in to_ask & tables.keys()
            if tables[oid].is_to_copy and self._pauses.waits(oid, tables[oid])
        }
        self._pauses.end(to_ask - waiting.keys())
        if not waiting:
            return
        with (
            connect_sql(self._config.source.dsn, application="locked tables") as connection,
            source_errors("asking for locks"),
        ):
            locked = locked_tables(connection, waiting)
        self._pauses.end(waiting.keys() - locked.keys())
        with self._tables.changing():
            for oid, sentence in locked.items():
                self._pauses.for_lock(oid)
                table, why = self._tables.get(oid), str(TableLocked.by(sentence))
                if table == waiting[oid] and table.error != why:
                    self._tables.apply(oid, CopyWaits(why))

    def put_off(self, oid: int) -> None:
        """Have a table wait whose copy the spool has no room for, and say so in its record.

        The copy was given up: what it needs of the spool is dropped.
        """
        pause_s = self._pauses.for_room(oid)
        begins = datetime.now(UTC) + timedelta(seconds=pause_s)
        self._tables.apply(
            oid,
            HoldReleased(
                "the spool reached its size limit while the table was copied: the copy was given "
                f"up, and begins again at {begins:%H:%M:%S} UTC\n"
                "  → give the spool more room: it has to hold what is committed during the copy"
            ),
        )

    def _is_streaming(self) -> bool:
        """Whether changes are applied to a table."""
        return any(table.is_active for table in self._tables.durable.tables.values())

    def _beside_stream(self, cores: int) -> int:
        """How many of Spark's cores the copies may have."""
        if self._turns.is_beside_stream():
            return copy_tasks_beside_stream(self.subscription, cores)
        return cores

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
                for oid, table in self._tables.unfinished.items()
                if table.state is TableState.DATA_COPY and table.old_target is not None
            ]
            if not works:
                return
            failpoint("copy.before_renamed")
            task = CopyRenamed(
                Spool.open(self._config.spool.path).identity.spool_id,
                sink_options(self.subscription),
            )
            workers = self.subscription.copy_workers
            outcomes = run_tasks(self._context(), task.run, works, most_tasks=workers)
            failpoint("copy.after_renamed")
            with self._tables.changing():
                for (oid, table), version in outcomes:
                    self._tables.apply(oid, renamed_event(version, table.committed))
        self._tables.raise_failure()


class _CopyThread(threading.Thread):
    """Copies some tables beside the stream; keeps the error that ended it.

    Attributes:
        uses_first: it reads a new slot's own snapshot.
    """

    def __init__(
        self,
        subscription: str,
        round_: CopyRound,
        uses_first: bool,
        work: Callable[[_CopyThread], None],
    ) -> None:
        super().__init__(name=f"pgsluice copies of {subscription}", daemon=True)
        self.round = round_
        self.uses_first = uses_first
        self.failure: BaseException | None = None
        self._work = work

    def run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:
            self.failure = error


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
    return CopyAbandoned("it was renamed, and its old target cannot be copied")
