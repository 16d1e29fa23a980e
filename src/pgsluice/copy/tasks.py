"""Runs a copy's portions as Spark tasks, only some at a time.

Each job has one task of a few seconds, and there are never more jobs than cores that the copy may
have. So whatever else needs Spark gets a core soon, even where there is only one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgsluice.copy.job import CopyWork
from pgsluice.errors import Failure, Remedy
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import PORTION_BYTES, Portion, size_bytes
from pgsluice.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stage = Callable[[Sequence[tuple[CopyWork, Portion]]], list[StagedRows | Failure]]

_MOST_JOBS = 64
_MOST_TABLES = 16
"""Small tables that share a task, at most."""
_INTERRUPTIONS = 3
"""How often a table's portions are tried again under the same snapshot."""
LOCK_PATIENCE_S = 30.0
"""How long a copy that has nothing else to do waits for locked tables, at least."""
_LOCK_RETRY_S = 5.0
_POLL_S = 1.0
"""How often a copy that waits for its tasks asks how many it may have."""


@dataclass(slots=True)
class TableCopy:
    """A table's copy while its portions are staged.

    Attributes:
        staged: what is staged, by the portion's number.
        failure: of a portion; the others are not read any more.
        locked: why portions are put aside; None: they are not.
        interruptions: how often a portion was tried again.
    """

    work: CopyWork
    portions: tuple[Portion, ...]
    staged: dict[int, StagedRows] = field(default_factory=dict)
    failure: Failure | None = None
    locked: Failure | None = None
    interruptions: int = 0

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


class _Pace:
    """Keeps what is read below a rate: no task begins before the earlier ones have had their time.

    Args:
        bytes_per_s: None for no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def may_begin(self) -> bool:
        """Whether the rate allows another task now."""
        return time.monotonic() >= self._free_at

    def begin(self, task: _Task) -> None:
        """Count a task that begins."""
        if self._bytes_per_s is not None:
            now = max(time.monotonic(), self._free_at)
            self._free_at = now + task.size_bytes / self._bytes_per_s


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

    def put(self, copy: TableCopy, number: int, tasks: deque[_Task]) -> None:
        """Put a portion aside, and all of its table that are not begun."""
        of_table = [task for task in tasks if task.portions[0][0] is copy]
        for task in of_table:
            tasks.remove(task)
        self._tasks += [_Task(((copy, number),)), *of_table]
        self._retry_at = time.monotonic() + _LOCK_RETRY_S

    def take_due(self) -> list[_Task]:
        """The portions to be tried now."""
        if time.monotonic() < self._retry_at:
            return []
        due, self._tasks = self._tasks, []
        return due

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
        copies = [copy for task in self._tasks for copy, _ in task.portions]
        self._tasks = []
        for copy in copies:
            copy.failure = copy.locked
        return list({id(copy): copy for copy in copies}.values())


def stage_tables(
    session: Callable[[], SparkSession],
    stage: Stage,
    copies: Sequence[TableCopy],
    most_tasks: Callable[[], int],
    *,
    rate: float | None = None,
    is_wanted: Callable[[TableCopy], bool],
    report: Callable[[TableCopy, int], None],
    is_stopping: Callable[[], bool],
) -> Iterator[TableCopy]:
    """Stage tables, small ones first, and give back each that is staged or has failed.

    Those that are missing at the end were not wanted any more, or the copy is stopping.

    Args:
        stage: what a task does (:meth:`pgsluice.copy.job.CopyTables.stage_all`); Spark pickles it.
        most_tasks: how many tasks may run at the same time, asked again and again.
        rate: bytes per second that all tasks may read together; None for no limit.
        is_wanted: whether a table is still to be copied; asked before each of its portions.
        report: called with a table and the number of its portion that is staged now, or that was
            put aside because the table is locked.

    Raises:
        Exception: Spark's, of a job that failed.
    """
    yield from (copy for copy in copies if copy.is_staged)
    tasks = deque(_tasks([copy for copy in copies if not copy.is_staged], max(1, most_tasks())))
    running: dict[Future[list[StagedRows | Failure]], _Task] = {}
    pace, locked = _Pace(rate), _LockedTables()
    with ThreadPoolExecutor(_MOST_JOBS, "pgsluice-copy") as threads:
        while tasks or running or locked:
            allowed = most_tasks()
            tasks += locked.take_due()
            while tasks and len(running) < allowed and pace.may_begin() and not is_stopping():
                next_ = _needed(tasks.popleft(), is_wanted)
                if next_.portions:
                    pace.begin(next_)
                    running[threads.submit(_run, session, stage, next_)] = next_
            if not running and (is_stopping() or not (tasks or locked)):
                return
            if not running:
                time.sleep(_POLL_S)
            ended, _ = wait(running, _POLL_S, FIRST_COMPLETED)
            for future in ended:
                results = zip(running.pop(future).portions, future.result(), strict=True)
                for (copy, number), result in results:
                    if copy.failure is not None:
                        continue
                    _take(copy, number, result, tasks, locked)
                    if copy.locked is not None or number in copy.staged:
                        report(copy, number)
                    if copy.failure is not None or copy.is_staged:
                        yield copy
            yield from locked.give_up((*running.values(), *tasks))


def _run(
    session: Callable[[], SparkSession], stage: Stage, portions: _Task
) -> list[StagedRows | Failure]:
    works = [(copy.work, copy.portions[number]) for copy, number in portions.portions]
    ((_, results),) = run_tasks(session(), stage, [works])
    return [results] * len(works) if isinstance(results, Failure) else results


def _take(
    copy: TableCopy,
    number: int,
    result: StagedRows | Failure,
    tasks: deque[_Task],
    locked: _LockedTables,
) -> None:
    """Take the result of a portion: it is staged, is tried again, or its table has failed."""
    if isinstance(result, StagedRows):
        copy.locked = None
        copy.staged[number] = result
    elif result.remedy is Remedy.LATER:
        copy.locked = result
        locked.put(copy, number, tasks)
    elif _may_pass(copy, result):
        tasks.append(_Task(((copy, number),)))
    else:
        copy.failure = result


def _may_pass(copy: TableCopy, failure: Failure) -> bool:
    """Whether a portion is tried again: its session broke, or the target's store failed."""
    if failure.remedy is not Remedy.WAIT:
        return False
    copy.interruptions += 1
    return copy.interruptions <= _INTERRUPTIONS


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
