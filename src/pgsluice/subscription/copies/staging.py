"""Runs the chunks of a copy as Spark tasks, a few at a time.

Each job has one task of a few seconds, and there are never more jobs than cores that the copy may
use. So other work soon gets a core, even if there is only one. A job costs the JVM as much CPU as
reading a hundred thousand narrow rows. So while no table has changes to apply, a task reads several
chunks of a table. With a journal, a task reads only one chunk, so that a killed run has to repeat
only that one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING

from pgsluice.copy.job import CopyWork
from pgsluice.errors import Failure, Remedy
from pgsluice.shown import first_names
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import Portion
from pgsluice.spark.jobs.tasks import described, run_tasks
from pgsluice.subscription.copies.portion_queue import (
    LockedPortions,
    PortionQueue,
    StagingTask,
    TableCopy,
    copies_of,
    staging_tasks,
)

if TYPE_CHECKING:
    from pgsluice.subscription.copies.kept import ReadSnapshot
    from pgsluice.subscription.copies.scheduler import CopySlots

Results = list[StagedRows | Failure | None]
"""The results of a task's chunks; None: the chunk was not read, because the task had run long
enough or an earlier chunk of the table had failed."""
Stage = Callable[[Sequence[tuple[CopyWork, Portion]], bool], Results]
"""The task function: :meth:`pgsluice.copy.job.CopyTables.stage_all`. Spark pickles it."""

MOST_JOBS = 64
PORTIONS_ALONE = 4
"""The largest number of chunks of a table that one task reads while no changes are applied."""
_INTERRUPTIONS = 3
"""How often a table's chunks are tried again under the same snapshot."""
_POLL_S = 0.5
"""How often a copy polls while it waits for its tasks or to start one, in seconds."""


class Staging:
    """The tasks of a copy run: queued, running, and set aside.

    Args:
        copies: the tables; chunks that an earlier run has staged are not read again.
        slots: decides when a task may start; :meth:`close` leaves them.
        locked: where to set chunks aside whose tables are locked; None: a new place.

    Attributes:
        queue: the tasks that are still to run.
    """

    def __init__(
        self,
        read: ReadSnapshot,
        copies: Sequence[TableCopy],
        slots: CopySlots,
        locked: LockedPortions | None = None,
        poll_s: float = _POLL_S,
    ) -> None:
        self._poll_s = poll_s
        self._read = read
        self._slots = slots
        left = [copy for copy in copies if not copy.is_staged]
        self.queue = PortionQueue(staging_tasks(left, slots.at_once))
        self._locked = locked if locked is not None else LockedPortions()
        self._running: dict[Future[Results], StagingTask] = {}
        self._ended: deque[tuple[TableCopy, int, StagedRows | Failure | None]] = deque()
        self._lost: Failure | None = None
        self._threads = ThreadPoolExecutor(MOST_JOBS, "pgsluice-copy")

    @property
    def is_unfinished(self) -> bool:
        """Whether any chunk is still to be read."""
        return bool(self.queue or self._running or self._locked)

    def drop_rest(self) -> None:
        """Start no more tasks; only the running ones are unfinished then."""
        self.queue.take_all()
        self._locked.take_all()

    def begin(self, is_wanted: Callable[[TableCopy], bool]) -> None:
        """Start a task. Wait a moment, until one may start or another has ended."""
        self._slots.refresh()
        self.queue.append(*self._locked.take_due())
        if not self.queue:
            self._slots.rest()
            return
        if not self._slots.acquire(self.queue.left_bytes, self._poll_s):
            return
        task = self.queue.pop(self._most_portions()).needed(is_wanted)
        if not task.portions:
            self._slots.release()
            return
        self._slots.share.rate.begin(task.size_bytes)
        job = self._threads.submit(self._run, task)
        self._running[job] = task
        job.add_done_callback(self._slots.release)

    def _most_portions(self) -> int:
        """How many chunks of a table the next task may read.

        It leaves as many for each of the other tasks, because the copy waits for the last ones.
        """
        share = self._slots.share
        if share.scheduler.is_beside_stream or share.rate.is_limited or self._read.is_kept:
            return 1
        return min(PORTIONS_ALONE, -(-len(self.queue) // self._slots.at_once))

    def _run(self, task: StagingTask) -> Results:
        works = [(copy.work, copy.portions[number]) for copy, number in task.portions]
        spark = self._slots.share.scheduler.spark()
        titles = [work.title for work, _ in works]
        with (
            described(spark, f"pgsluice: copy {first_names(titles)}"),
            self._read.reading() as stage,
        ):
            stands_back = self._slots.share.scheduler.is_beside_stream
            ((_, results),) = run_tasks(spark, lambda works: stage(works, stands_back), [works])
        if isinstance(results, Failure):
            return [results, *[None] * (len(works) - 1)]
        return results

    def ended(self) -> Iterator[tuple[TableCopy, int]]:
        """Take the results of ended tasks; wait a moment if none may start before that.

        Returns:
            the chunks of tables that had not failed before: staged, set aside because the table is
            locked, queued again, or failed.

        Raises:
            Exception: an error of Spark, if a job failed.
        """
        if not self._running and self.is_unfinished and not self.queue:
            time.sleep(self._poll_s)
        ended, _ = wait(self._running, 0 if self.queue else self._poll_s, FIRST_COMPLETED)
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
        """Wait for the tasks of an interrupted copy run, and leave its slots.

        Returns:
            the chunks that they have staged, for the caller to keep or delete.
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
        """Take a chunk's result: staged, tried again, or the table has failed."""
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
        """The tables that fail without being read: locked ones whose time is over, or all if none
        can be read any more."""
        if self._lost is None:
            return self._locked.give_up((*self._running.values(), *self.queue))
        left = copies_of([*self.queue.take_all(), *self._locked.take_all()])
        copies = [copy for copy in left if copy.failure is None]
        for copy in copies:
            copy.failure = self._lost
        return copies


def _may_pass(copy: TableCopy, failure: Failure) -> bool:
    """Whether to try a chunk again: its session broke, or the target's store failed."""
    if failure.remedy is not Remedy.WAIT:
        return False
    copy.interruptions += 1
    return copy.interruptions <= _INTERRUPTIONS
