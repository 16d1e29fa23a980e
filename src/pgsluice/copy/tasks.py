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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pgsluice.copy.job import CopyWork
from pgsluice.copy.turns import CopyPace, CopyTurn
from pgsluice.errors import Failure, Remedy
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import PORTION_BYTES, Portion, size_bytes
from pgsluice.spark.jobs.tasks import described, names_of, run_tasks

if TYPE_CHECKING:
    from pyspark import SparkContext

Results = list[StagedRows | Failure | None]
"""Of the portions of a task; None: it was not read, since the task had read long enough, or an
earlier portion of its table had failed."""
Stage = Callable[[Sequence[tuple[CopyWork, Portion]], bool], Results]
Staging = Callable[[], AbstractContextManager[Stage]]

_MOST_JOBS = 64
_MOST_TABLES = 16
"""Small tables that share a task, at most."""
_PORTIONS_ALONE = 4
"""Portions of a table that one task reads beside no stream, at most."""
_INTERRUPTIONS = 3
"""How often a table's portions are tried again under the same snapshot."""
LOCK_PATIENCE_S = 30.0
"""How long a copy that has nothing else to do waits for locked tables, at least."""
_LOCK_RETRY_S = 5.0
_POLL_S = 0.5
"""How often a copy that waits for its tasks, or for its turn, asks again."""


@dataclass(slots=True)
class TableCopy:
    """A table's copy while its portions are staged.

    Attributes:
        staged: what is staged, by the portion's number.
        failure: of a portion; the others are not read any more.
        locked: why portions are put aside; None: they are not.
        interruptions: how often a portion was tried again.
        is_offered: a commit of what is staged was begun, and perhaps made.
    """

    work: CopyWork
    portions: tuple[Portion, ...]
    staged: dict[int, StagedRows] = field(default_factory=dict)
    failure: Failure | None = None
    locked: Failure | None = None
    interruptions: int = 0
    is_offered: bool = False

    @property
    def size_bytes(self) -> int:
        """About how much is read of the source."""
        return sum(map(size_bytes, self.portions))

    @property
    def rows(self) -> int:
        """How many rows are staged."""
        return sum(part.rows for part in self.staged.values())

    @property
    def is_staged(self) -> bool:
        """Whether all portions are staged."""
        return len(self.staged) == len(self.portions)


@dataclass(frozen=True, slots=True)
class _Task:
    """What one task stages: a portion of a large table, or some small tables."""

    portions: tuple[tuple[TableCopy, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(size_bytes(copy.portions[number]) for copy, number in self.portions)


class _Queue:
    """What is to be read, in its order.

    Attributes:
        left_bytes: about how much that is.
    """

    def __init__(self, tasks: Iterable[_Task]) -> None:
        self._tasks: deque[_Task] = deque()
        self.left_bytes = 0
        self.append(*tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[_Task]:
        return iter(self._tasks)

    def append(self, *tasks: _Task) -> None:
        """Put tasks at the end."""
        self._tasks.extend(tasks)
        self.left_bytes += sum(task.size_bytes for task in tasks)

    def put_back(self, task: _Task) -> None:
        """Put a task at the beginning."""
        self._tasks.appendleft(task)
        self.left_bytes += task.size_bytes

    def pop(self, most_portions: int) -> _Task:
        """Take the first one.

        Args:
            most_portions: if it is a portion of a large table, it takes those that follow, too.
        """
        task = self._tasks.popleft()
        copy, _ = task.portions[0]
        while (
            len(copy.portions) > 1
            and len(task.portions) < most_portions
            and self._tasks
            and self._tasks[0].portions[0][0] is copy
        ):
            task = _Task(task.portions + self._tasks.popleft().portions)
        self.left_bytes -= task.size_bytes
        return task

    def take_all(self) -> list[_Task]:
        """Take all of them."""
        tasks = [*self._tasks]
        self._tasks.clear()
        self.left_bytes = 0
        return tasks

    def take_table(self, copy: TableCopy) -> list[_Task]:
        """Take all portions of a table that has several."""
        tasks = self.take_all()
        self.append(*(task for task in tasks if task.portions[0][0] is not copy))
        return [task for task in tasks if task.portions[0][0] is copy]


class _LockedTables:
    """Portions that are put aside, because other sessions have locked their tables.

    They are tried again and again while other tables are read, and then for as long again as the
    copy has lasted: to wait longer would cost more than to begin the tables anew.
    """

    def __init__(self) -> None:
        self._tasks: list[_Task] = []
        self._retry_at = 0.0
        self._began_at = self._idle_since = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def put(self, tasks: Sequence[_Task]) -> None:
        """Put portions aside."""
        self._tasks += tasks
        self._retry_at = time.monotonic() + _LOCK_RETRY_S

    def take_due(self) -> list[_Task]:
        """The portions to be tried now."""
        return [] if time.monotonic() < self._retry_at else self.take_all()

    def take_all(self) -> list[_Task]:
        """Take all of them."""
        tasks, self._tasks = self._tasks, []
        return tasks

    def give_up(self, others: Iterable[_Task]) -> list[TableCopy]:
        """The tables that are not waited for any longer; they have failed.

        Args:
            others: what is read, or is to be.
        """
        now = time.monotonic()
        if any(copy.locked is None for task in others for copy, _ in task.portions):
            self._idle_since = now
        lasted_s = self._idle_since - self._began_at
        if not self._tasks or now - self._idle_since < max(LOCK_PATIENCE_S, lasted_s):
            return []
        copies = _copies_of(self.take_all())
        for copy in copies:
            copy.failure = copy.locked
        return copies


def stage_tables(
    context: Callable[[], SparkContext],
    staging: Staging,
    copies: Sequence[TableCopy],
    turn: CopyTurn,
    pace: CopyPace,
    *,
    is_wanted: Callable[[TableCopy], bool],
    are_kept: Callable[[], bool],
    report: Callable[[TableCopy, int], None],
    is_stopping: Callable[[], bool],
) -> Iterator[TableCopy]:
    """Stage tables, small ones first, and give back each that is staged or has failed.

    Those that are missing at the end were not wanted any more, or the copy is stopping.

    Args:
        staging: what a task does (:meth:`pgsluice.copy.job.CopyTables.stage_all`), for as long as
            the task lasts; Spark pickles it. Several threads ask.
        turn: says how many tasks may run at the same time; it leaves at the end.
        pace: of all copies of the subscription.
        is_wanted: whether a table is still to be copied; asked before each task that reads it.
        are_kept: whether another run could go on with what is staged: then each task reads one
            portion of a table.
        report: called with a table and the number of its portion that is staged now, or that was
            put aside because the table is locked.

    Raises:
        Exception: Spark's, of a job that failed.
    """
    left = [copy for copy in copies if not copy.is_staged]
    run = partial(_run, context, staging, turn)
    try:
        yield from (copy for copy in copies if copy.is_staged)
        queue = _Queue(_tasks(left, turn.look()))
        with ThreadPoolExecutor(_MOST_JOBS, "pgsluice-copy") as threads:
            tasks = _Tasks(partial(threads.submit, run), queue, turn, pace, are_kept)
            try:
                while tasks.are_unfinished and not (is_stopping() and tasks.are_idle):
                    if not is_stopping():
                        tasks.begin(is_wanted)
                    for copy, number in tasks.end():
                        if copy.locked is not None or number in copy.staged:
                            report(copy, number)
                        if copy.failure is not None or copy.is_staged:
                            yield copy
                    yield from tasks.give_up()
            finally:
                tasks.take_left(report)
    finally:
        turn.leave()


class _Tasks:
    """The tasks of a round: what is to be read, what is being read, and what is put aside.

    Args:
        submit: starts a task.
        are_kept: see :func:`stage_tables`.
    """

    def __init__(
        self,
        submit: Callable[[_Task], Future[Results]],
        queue: _Queue,
        turn: CopyTurn,
        pace: CopyPace,
        are_kept: Callable[[], bool],
    ) -> None:
        self._submit = submit
        self._queue = queue
        self._turn = turn
        self._pace = pace
        self._are_kept = are_kept
        self._locked = _LockedTables()
        self._running: dict[Future[Results], _Task] = {}
        self._ended: deque[tuple[TableCopy, int, StagedRows | Failure | None]] = deque()
        self._lost: Failure | None = None

    @property
    def are_unfinished(self) -> bool:
        """Whether anything is still to be read."""
        return bool(self._queue or self._running or self._locked)

    @property
    def are_idle(self) -> bool:
        """Whether nothing is being read."""
        return not self._running

    def begin(self, is_wanted: Callable[[TableCopy], bool]) -> None:
        """Begin as many tasks as may begin now."""
        self._turn.look()
        self._queue.append(*self._locked.take_due())
        while self._queue and self._pace.may_begin():
            if not self._turn.begin(self._queue.left_bytes):
                return
            task = _needed(self._queue.pop(self._most_portions()), is_wanted)
            if task.portions:
                self._pace.begin(task.size_bytes)
                self._running[self._submit(task)] = task
            else:
                self._turn.end()
        self._turn.rest()

    def _most_portions(self) -> int:
        """How many portions of a table the next task may read.

        It leaves as many to each of the others, since the last ones are waited for.
        """
        if self._turn.is_beside_stream or self._pace.has_rate or self._are_kept():
            return 1
        return min(_PORTIONS_ALONE, -(-len(self._queue) // self._turn.at_once))

    def end(self) -> Iterator[tuple[TableCopy, int]]:
        """Wait a moment for tasks to end, and take their results.

        Returns:
            the portions of tables that had not failed before.

        Raises:
            Exception: Spark's, of a job that failed.
        """
        if not self._running and self.are_unfinished:
            time.sleep(_POLL_S)
        ended, _ = wait(self._running, _POLL_S, FIRST_COMPLETED)
        for future in ended:
            self._turn.end()
            self._note(future, self._running.pop(future))
        while self._ended:
            copy, number, result = self._ended.popleft()
            if copy.failure is None:
                self._take(copy, number, result)
                yield copy, number
            elif isinstance(result, StagedRows):
                copy.staged[number] = result

    def take_left(self, report: Callable[[TableCopy, int], None]) -> None:
        """Wait for the tasks of a round that broke off, and note what they have staged: somebody
        goes on with it, or deletes it."""
        for future, task in self._running.items():
            with suppress(Exception):  # the error that ended the round counts
                self._note(future, task)
        for copy, number, result in self._ended:
            if isinstance(result, StagedRows) and number not in copy.staged:
                copy.staged[number] = result
                with suppress(Exception):
                    report(copy, number)

    def _note(self, ended: Future[Results], task: _Task) -> None:
        results = zip(task.portions, ended.result(), strict=True)
        self._ended += [(copy, number, result) for (copy, number), result in results]

    def _take(self, copy: TableCopy, number: int, result: StagedRows | Failure | None) -> None:
        """Take a portion's result: it is staged, is tried again, or its table has failed."""
        portion = _Task(((copy, number),))
        if isinstance(result, StagedRows):
            copy.locked = None
            copy.staged[number] = result
            return
        if result is None:
            if copy.locked is None:
                self._queue.put_back(portion)
            else:
                self._locked.put([portion])
            return
        if result.is_lasting or result.remedy is Remedy.LATER:
            self._pace.give_back(portion.size_bytes)  # nothing was read
        if result.is_lasting:
            copy.failure = self._lost = result
        elif result.remedy is Remedy.LATER:
            copy.locked = result
            self._locked.put([portion, *self._queue.take_table(copy)])
        elif _may_pass(copy, result):
            self._queue.append(portion)
        else:
            copy.failure = result

    def give_up(self) -> list[TableCopy]:
        """The tables that have failed without being read: those that are locked and not waited for
        any longer, or all, if none can be read any more."""
        if self._lost is None:
            return self._locked.give_up((*self._running.values(), *self._queue))
        left = _copies_of([*self._queue.take_all(), *self._locked.take_all()])
        copies = [copy for copy in left if copy.failure is None]
        for copy in copies:
            copy.failure = self._lost
        return copies


def _run(
    context: Callable[[], SparkContext], staging: Staging, turn: CopyTurn, task: _Task
) -> Results:
    works = [(copy.work, copy.portions[number]) for copy, number in task.portions]
    spark = context()
    titles = [f"{work.namespace}.{work.name}" for work, _ in works]
    with described(spark, f"pgsluice: copy {names_of(titles)}"), staging() as stage:
        stands_back = turn.is_beside_stream
        ((_, results),) = run_tasks(spark, lambda works: stage(works, stands_back), [works])
    if isinstance(results, Failure):
        return [results, *[None] * (len(works) - 1)]
    return results


def _may_pass(copy: TableCopy, failure: Failure) -> bool:
    """Whether a portion is tried again: its session broke, or the target's store failed."""
    if failure.remedy is not Remedy.WAIT:
        return False
    copy.interruptions += 1
    return copy.interruptions <= _INTERRUPTIONS


def _copies_of(tasks: Iterable[_Task]) -> list[TableCopy]:
    """The tables of tasks, each once."""
    copies = (copy for task in tasks for copy, _ in task.portions)
    return list({id(copy): copy for copy in copies}.values())


def _needed(task: _Task, is_wanted: Callable[[TableCopy], bool]) -> _Task:
    """What of a task is still to be done."""
    needed = [(copy, n) for copy, n in task.portions if copy.failure is None and is_wanted(copy)]
    return _Task(tuple(needed))


def _tasks(copies: Sequence[TableCopy], at_once: int) -> Iterator[_Task]:
    """What tasks do, in their order: small tables come first, and share tasks."""
    ordered = sorted(copies, key=lambda copy: copy.size_bytes)
    small = [copy for copy in ordered if len(copy.portions) == 1]
    most_tables = max(1, min(_MOST_TABLES, len(small) // (2 * at_once)))
    together: list[TableCopy] = []
    for copy in small:
        together_bytes = copy.size_bytes + sum(other.size_bytes for other in together)
        if together and (len(together) == most_tables or together_bytes > PORTION_BYTES):
            yield _Task(tuple((other, 0) for other in together))
            together = []
        together.append(copy)
    if together:
        yield _Task(tuple((copy, 0) for copy in together))
    for copy in ordered:
        if len(copy.portions) > 1:
            numbers = (n for n in range(len(copy.portions)) if n not in copy.staged)
            yield from (_Task(((copy, number),)) for number in numbers)
