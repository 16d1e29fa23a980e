"""Runs a copy's portions as Spark tasks, only some at a time.

Each job has one task of a few seconds, and there are never more jobs than cores that the copy may
have. So whatever else needs Spark gets a core soon, even where there is only one. As long as no
table has changes that wait for a core, a task reads some portions of a table one after the other: a
job costs the JVM as much CPU as to read a hundred thousand narrow rows. But a task of copies whose
portions are written down reads one: that of a run that is killed is read again, and nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Protocol

from pgsluice.copy import CopyWork
from pgsluice.errors import Failure, Remedy
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import Portion
from pgsluice.spark.jobs.tasks import described, names_of, run_tasks
from pgsluice.subscription.copies.portion_queue import (
    LockedPortions,
    PortionQueue,
    StagingTask,
    TableCopy,
    copies_of,
    staging_tasks,
)

if TYPE_CHECKING:
    from pgsluice.subscription.copies.scheduler import CopySlots

Results = list[StagedRows | Failure | None]
"""Of the portions of a task; None: it was not read, since the task had read long enough, or an
earlier portion of its table had failed."""
Stage = Callable[[Sequence[tuple[CopyWork, Portion]], bool], Results]
"""What a task does: :meth:`pgsluice.copy.job.CopyTables.stage_all`. Spark pickles it."""

_MOST_JOBS = 64
_PORTIONS_ALONE = 4
"""Portions of a table that one task reads beside no stream, at most."""
_INTERRUPTIONS = 3
"""How often a table's portions are tried again under the same snapshot."""
_POLL_S = 0.5
"""How often a copy that waits for its tasks, or for its turn, asks again."""


class StagedUnder(Protocol):
    """The snapshot that tasks read under."""

    @property
    def is_kept(self) -> bool:
        """Whether another run could go on with what is staged: then each task reads one portion of
        a table."""

    def reading(self) -> AbstractContextManager[Stage]:
        """A block for as long as a task lasts; any thread may enter it."""


class Staging:
    """The tasks of a copy run: what is to be read, what is being read, and what is put aside.

    Args:
        read: what its tasks read under.
        copies: the tables; what an earlier run has staged of them is not read again.
        slots: says when a task may begin; :meth:`close` leaves them.

    Attributes:
        queue: what is to be read.
    """

    def __init__(self, read: StagedUnder, copies: Sequence[TableCopy], slots: CopySlots) -> None:
        self._read = read
        self._slots = slots
        left = [copy for copy in copies if not copy.is_staged]
        self.queue = PortionQueue(staging_tasks(left, slots.at_once))
        self._locked = LockedPortions()
        self._running: dict[Future[Results], StagingTask] = {}
        self._ended: deque[tuple[TableCopy, int, StagedRows | Failure | None]] = deque()
        self._lost: Failure | None = None
        self._threads = ThreadPoolExecutor(_MOST_JOBS, "pgsluice-copy")

    @property
    def is_unfinished(self) -> bool:
        """Whether anything is still to be read."""
        return bool(self.queue or self._running or self._locked)

    def drop_rest(self) -> None:
        """Begin nothing any more: only what is being read is unfinished."""
        self.queue.take_all()
        self._locked.take_all()

    def begin(self, is_wanted: Callable[[TableCopy], bool]) -> None:
        """Begin a task; waits until one may begin, or another has ended, for a moment at most.

        Args:
            is_wanted: whether a table is still to be copied.
        """
        self._slots.refresh()
        self.queue.append(*self._locked.take_due())
        if not self.queue:
            self._slots.rest()
            return
        lease = self._slots.acquire(self.queue.left_bytes, _POLL_S)
        if lease is None:
            return
        task = self.queue.pop(self._most_portions()).needed(is_wanted)
        if not task.portions:
            lease.release()
            return
        self._slots.share.rate.begin(task.size_bytes)
        job = self._threads.submit(self._run, task)
        self._running[job] = task
        job.add_done_callback(lease.release)

    def _most_portions(self) -> int:
        """How many portions of a table the next task may read.

        It leaves as many to each of the others, since the last ones are waited for.
        """
        slots = self._slots
        if slots.is_beside_stream or slots.share.rate.is_limited or self._read.is_kept:
            return 1
        return min(_PORTIONS_ALONE, -(-len(self.queue) // slots.at_once))

    def _run(self, task: StagingTask) -> Results:
        works = [(copy.work, copy.portions[number]) for copy, number in task.portions]
        spark = self._slots.share.spark()
        titles = [f"{work.namespace}.{work.name}" for work, _ in works]
        with (
            described(spark, f"pgsluice: copy {names_of(titles)}"),
            self._read.reading() as stage,
        ):
            stands_back = self._slots.is_beside_stream
            ((_, results),) = run_tasks(spark, lambda works: stage(works, stands_back), [works])
        if isinstance(results, Failure):
            return [results, *[None] * (len(works) - 1)]
        return results

    def ended(self) -> Iterator[tuple[TableCopy, int]]:
        """Take the results of tasks that have ended; waits a moment if none may begin before.

        Returns:
            the portions of tables that had not failed before: staged, put aside because the table
            is locked, to be read again, or failed.

        Raises:
            Exception: Spark's, of a job that failed.
        """
        if not self._running and self.is_unfinished and not self.queue:
            time.sleep(_POLL_S)
        ended, _ = wait(self._running, 0 if self.queue else _POLL_S, FIRST_COMPLETED)
        for job in ended:
            self._note(job, self._running.pop(job))
        while self._ended:
            copy, number, result = self._ended.popleft()
            if copy.failure is None:
                self._take(copy, number, result)
                yield copy, number
            elif isinstance(result, StagedRows):
                copy.staged[number] = result

    def close(self) -> list[tuple[TableCopy, int]]:
        """Wait for the tasks of a copy run that broke off, and leave its slots.

        Returns:
            the portions that they have staged: somebody goes on with them, or deletes them.
        """
        try:
            for job, task in self._running.items():
                with suppress(Exception):  # the error that ended the copy run counts
                    self._note(job, task)
            self._threads.shutdown()
        finally:
            self._slots.leave()
        staged = []
        for copy, number, result in self._ended:
            if isinstance(result, StagedRows) and number not in copy.staged:
                copy.staged[number] = result
                staged.append((copy, number))
        return staged

    def _note(self, ended: Future[Results], task: StagingTask) -> None:
        results = zip(task.portions, ended.result(), strict=True)
        self._ended += [(copy, number, result) for (copy, number), result in results]

    def _take(self, copy: TableCopy, number: int, result: StagedRows | Failure | None) -> None:
        """Take a portion's result: it is staged, is tried again, or its table has failed."""
        portion = StagingTask(((copy, number),))
        if isinstance(result, StagedRows):
            copy.locked = None
            copy.staged[number] = result
            return
        if result is None:
            if copy.locked is None:
                self.queue.put_back(portion)
            else:
                self._locked.put([portion])
            return
        if result.is_lasting or result.remedy is Remedy.LATER:
            self._slots.share.rate.give_back(portion.size_bytes)  # nothing was read
        if result.is_lasting:
            copy.failure = self._lost = result
        elif result.remedy is Remedy.LATER:
            copy.locked = result
            self._locked.put([portion, *self.queue.take_table(copy)])
        elif _may_pass(copy, result):
            self.queue.append(portion)
        else:
            copy.failure = result

    def give_up(self) -> list[TableCopy]:
        """The tables that have failed without being read: those that are locked and not waited for
        any longer, or all, if none can be read any more."""
        if self._lost is None:
            return self._locked.give_up((*self._running.values(), *self.queue))
        left = copies_of([*self.queue.take_all(), *self._locked.take_all()])
        copies = [copy for copy in left if copy.failure is None]
        for copy in copies:
            copy.failure = self._lost
        return copies


def _may_pass(copy: TableCopy, failure: Failure) -> bool:
    """Whether a portion is tried again: its session broke, or the target's store failed."""
    if failure.remedy is not Remedy.WAIT:
        return False
    copy.interruptions += 1
    return copy.interruptions <= _INTERRUPTIONS
