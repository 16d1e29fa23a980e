"""Copies that stand still until the table of DDL has executed statements.

Copies whose tasks Spark runs are held before the first task. Those whose tasks run in this process
(:mod:`tests.support.local_spark`) can also be held when a range has its lock: each leaf is read in
two ranges, whatever its size, so that one can be read before a statement and one after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from tests.support.waiting import HANGS_S

from pgsluice.snapshots import reader
from pgsluice.snapshots.ranges import Portion
from pgsluice.snapshots.reader import TableQuery
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.scheduler import CopyScheduler, CopySlots
from pgsluice.subscription.copies.staging import Staging

_MOST_TASKS = 500
_MOST_CONNECTIONS = 20
_MIDDLE = "'(0,8)'::pg_catalog.tid"
_WAITING = """
SELECT pid FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND (wait_event = 'relation' OR NOT %s) AND pid = %s
"""

_begin = Staging.begin
_table_reader = reader.table_reader
_import_and_lock = reader.import_and_lock


class HeldCopies:
    """Holds the copies of some tables."""

    def __init__(self) -> None:
        self._oids: frozenset[int] = frozenset()
        self._begun: set[int] = set()
        self._held: set[int] = set()
        self._firsts, self._rest = threading.Event(), threading.Event()
        self._guard = threading.Lock()
        self._connections = threading.Semaphore(_MOST_CONNECTIONS)
        self.release()

    def hold(self, oids: Collection[int]) -> None:
        """Hold the next copies of these tables."""
        self._oids = frozenset(oids)
        self._begun.clear()
        self._held.clear()
        self._firsts.clear()
        self._rest.clear()

    def are_held(self) -> bool:
        """Whether all of the tables are held."""
        return self._held >= self._oids

    def release_first_ranges(self) -> None:
        """Have the ranges read that have a lock."""
        self._firsts.set()

    def release(self) -> None:
        """Have everything read."""
        self._firsts.set()
        self._rest.set()

    def begin(self, staging: Staging, is_wanted: Callable[[TableCopy], bool]) -> None:
        """In place of a copy run's."""
        queued = (copy for task in staging.queue for copy, _ in task.portions)
        oids = {copy.work.facts.oid for copy in queued} & self._oids
        self._note(oids)
        if oids:
            assert self._rest.wait(HANGS_S)
        _begin(staging, is_wanted)

    @contextmanager
    def table_reader(
        self,
        dsn: str,
        snapshot: Snapshot,
        query: TableQuery,
        portions: Sequence[Portion],
        **options: Any,
    ) -> Iterator[reader.TableReader]:
        """In place of the reader's."""
        oid = query.facts.oid
        has_lock = self._is_first(oid)
        if oid in self._oids and not has_lock:
            assert self._rest.wait(HANGS_S)
        with (
            nullcontext() if has_lock else self._connections,
            _table_reader(dsn, snapshot, query, portions, **options) as read,
        ):
            yield read

    def import_snapshot(
        self,
        connection: psycopg.Connection[tuple[object, ...]],
        snapshot: Snapshot,
        query: TableQuery,
        *more: Any,
    ) -> None:
        """In place of the reader's, which ends with the lock."""
        _import_and_lock(connection, snapshot, query, *more)
        if query.facts.oid in self._oids:
            self._note({query.facts.oid})
            assert self._firsts.wait(HANGS_S)

    def _is_first(self, oid: int) -> bool:
        with self._guard:
            is_first = oid in self._oids and oid not in self._begun
            self._begun.add(oid)
            return is_first

    def _note(self, oids: Collection[int]) -> None:
        with self._guard:
            self._held.update(oids)


@contextmanager
def held_copies(*, has_lock: bool) -> Iterator[HeldCopies]:
    """A block in which copies can be held.

    Args:
        has_lock: each table's first range has its lock when it is held, for which tasks have to run
            in this process; else no task is begun.
    """
    held = HeldCopies()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgsluice.snapshots.ranges.page_ranges", _two_ranges)
        patch.setattr("pgsluice.snapshots.plan.finds_pages", lambda _: True)
        patch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 1)
        patch.setattr("pgsluice.subscription.copies.staging.PORTIONS_ALONE", 1)
        if has_lock:
            patch.setattr("pgsluice.snapshots.reader.table_reader", held.table_reader)
            patch.setattr("pgsluice.snapshots.reader.import_and_lock", held.import_snapshot)
            patch.setattr("pgsluice.subscription.copies.staging.MOST_JOBS", _MOST_TASKS)
            # As many tasks as there are: the held ones would be in the way of the others.
            patch.setattr(CopyScheduler, "has_room", lambda *_: True)
            patch.setattr(CopySlots, "at_once", _MOST_TASKS)
        else:
            patch.setattr(Staging, "begin", lambda *arguments: held.begin(*arguments))
        try:
            yield held
        finally:
            held.release()


def _two_ranges(_pages: int, _count: int, *, has_end: bool) -> list[str]:
    return [f"ctid < {_MIDDLE}", f"ctid >= {_MIDDLE}"]


class StatementsBesideCopies:
    """Statements in a session of their own, which may wait for a copy's lock.

    Args:
        steps: two: what runs first, and what runs after :meth:`go_on`.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], steps: Sequence[Callable[[], None]]
    ) -> None:
        self._backend = connection.info.backend_pid
        self._connection = connection
        self._first_step, self._second_step = steps
        self._is_first_done, self._may_go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def is_first_done(self) -> bool:
        """Whether the first step is over."""
        return self._is_first_done.is_set()

    def waits(self, connection: psycopg.Connection[Any], *, for_table: bool = False) -> bool:
        """Whether they wait for a lock: of a table, or the end of transactions, too, as
        statements with CONCURRENTLY do."""
        return bool(connection.execute(_WAITING, [for_table, self._backend]).fetchall())

    def go_on(self) -> None:
        """Begin the second step as soon as the first one is over."""
        self._may_go_on.set()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _run(self) -> None:
        with self._connection:
            self._first_step()
            self._is_first_done.set()
            assert self._may_go_on.wait(HANGS_S)
            self._second_step()
