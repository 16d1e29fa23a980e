"""The order in which a copy run reads the chunks of its tables.

Small tables come first and share tasks. Then come the chunks of large tables, the smallest table
first. A chunk whose session broke moves to the end. If another session has locked a table, all of
its chunks are set aside and tried again every few seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pgsluice.copy.job import CopyWork
from pgsluice.errors import Failure
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import PORTION_BYTES, Portion, size_bytes

_MOST_TABLES = 16
"""The largest number of small tables that share a task."""
LOCK_PATIENCE_S = 30.0
"""The minimum time that a copy without other work waits for locked tables, in seconds."""
_LOCK_RETRY_S = 5.0


@dataclass(slots=True)
class TableCopy:
    """A table's copy while its chunks are staged.

    Attributes:
        staged: the result of each staged chunk, by the chunk's number.
        failure: the failure of a chunk; the remaining chunks are then skipped.
        locked: why chunks are set aside; None: they are not.
        interruptions: how often a chunk was tried again.
        is_offered: a commit of the staged chunks was started, and may have succeeded.
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
        """The approximate number of bytes that the chunks read from the source."""
        return sum(map(size_bytes, self.portions))

    @property
    def rows(self) -> int:
        """The number of staged rows."""
        return sum(part.rows for part in self.staged.values())

    @property
    def is_staged(self) -> bool:
        """Whether all chunks are staged."""
        return len(self.staged) == len(self.portions)


@dataclass(frozen=True, slots=True)
class StagingTask:
    """The work of one task: a chunk of a large table, or some small tables."""

    portions: tuple[tuple[TableCopy, int], ...]

    @property
    def size_bytes(self) -> int:
        """The approximate size of what the task reads of the source, in bytes."""
        return sum(size_bytes(copy.portions[number]) for copy, number in self.portions)

    def needed(self, is_wanted: Callable[[TableCopy], bool]) -> StagingTask:
        """The part of the task that is still needed."""
        portions = self.portions
        kept = [(copy, n) for copy, n in portions if copy.failure is None and is_wanted(copy)]
        return StagingTask(tuple(kept))


class PortionQueue:
    """The tasks that are still to run, in order, and their approximate size in bytes."""

    def __init__(self, tasks: Iterable[StagingTask]) -> None:
        self._tasks: deque[StagingTask] = deque()
        self.left_bytes = 0
        self.append(*tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[StagingTask]:
        return iter(self._tasks)

    def append(self, *tasks: StagingTask) -> None:
        """Put tasks of staging at the end of the queue."""
        self._tasks.extend(tasks)
        self.left_bytes += sum(task.size_bytes for task in tasks)

    def put_back(self, task: StagingTask) -> None:
        """Put a task at the beginning of the queue."""
        self._tasks.appendleft(task)
        self.left_bytes += task.size_bytes

    def pop(self, most_portions: int) -> StagingTask:
        """Take the first task.

        Args:
            most_portions: how many consecutive chunks to take, if the first one is a chunk of a
                large table.
        """
        task = self._tasks.popleft()
        copy, _ = task.portions[0]
        while (
            len(copy.portions) > 1
            and len(task.portions) < most_portions
            and self._tasks
            and self._tasks[0].portions[0][0] is copy
        ):
            task = StagingTask(task.portions + self._tasks.popleft().portions)
        self.left_bytes -= task.size_bytes
        return task

    def take_all(self) -> list[StagingTask]:
        """Take all tasks."""
        tasks = [*self._tasks]
        self._tasks.clear()
        self.left_bytes = 0
        return tasks

    def take_table(self, copy: TableCopy) -> list[StagingTask]:
        """Take all chunks of a table that has several."""
        tasks = self.take_all()
        self.append(*(task for task in tasks if task.portions[0][0] is not copy))
        return [task for task in tasks if task.portions[0][0] is copy]


class LockedPortions:
    """Chunks that are set aside because other sessions have locked their tables.

    They are retried while other tables are read, and then for as long again as the copy has lasted.
    To wait longer would cost more than to copy these tables again later.
    """

    def __init__(self, retry_s: float = _LOCK_RETRY_S, patience_s: float = LOCK_PATIENCE_S) -> None:
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._tasks: list[StagingTask] = []
        self._retry_at = 0.0
        self._began_at = self._idle_since = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def put(self, tasks: Sequence[StagingTask]) -> None:
        """Set chunks aside."""
        self._tasks += tasks
        self._retry_at = time.monotonic() + self._retry_s

    def take_due(self) -> list[StagingTask]:
        """Take the chunks that are due for another attempt."""
        return [] if time.monotonic() < self._retry_at else self.take_all()

    def take_all(self) -> list[StagingTask]:
        """Take all chunks."""
        tasks, self._tasks = self._tasks, []
        return tasks

    def give_up(self, others: Iterable[StagingTask]) -> list[TableCopy]:
        """Stop waiting for tables whose time is over, and return them; their copies fail.

        Args:
            others: the tables that are being read, or queued.
        """
        now = time.monotonic()
        if any(copy.locked is None for task in others for copy, _ in task.portions):
            self._idle_since = now
        lasted_s = self._idle_since - self._began_at
        if not self._tasks or now - self._idle_since < max(self._patience_s, lasted_s):
            return []
        copies = copies_of(self.take_all())
        for copy in copies:
            copy.failure = copy.locked
        return copies


def staging_tasks(copies: Sequence[TableCopy], at_once: int) -> Iterator[StagingTask]:
    """The tasks of these copies, in order: small tables come first, and share tasks."""
    ordered = sorted(copies, key=lambda copy: copy.size_bytes)
    small = [copy for copy in ordered if len(copy.portions) == 1]
    most_tables = max(1, min(_MOST_TABLES, len(small) // (2 * at_once)))
    together: list[TableCopy] = []
    for copy in small:
        together_bytes = copy.size_bytes + sum(other.size_bytes for other in together)
        if together and (len(together) == most_tables or together_bytes > PORTION_BYTES):
            yield StagingTask(tuple((other, 0) for other in together))
            together = []
        together.append(copy)
    if together:
        yield StagingTask(tuple((copy, 0) for copy in together))
    for copy in ordered:
        if len(copy.portions) > 1:
            numbers = (n for n in range(len(copy.portions)) if n not in copy.staged)
            yield from (StagingTask(((copy, number),)) for number in numbers)


def copies_of(tasks: Iterable[StagingTask]) -> list[TableCopy]:
    """The tables of these tasks, each once."""
    copies = (copy for task in tasks for copy, _ in task.portions)
    return list({id(copy): copy for copy in copies}.values())
