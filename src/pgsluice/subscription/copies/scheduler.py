"""Decides when a task of a copy may start: all copy runs share one source and Spark's cores.

A copy run copies tables of one subscription under one snapshot, and a run may have several. Each
task has one connection to the source. The rules:

- The copy runs of a subscription use at most the connections that it allows, and at most as many
  tasks at a time as the cores that it may use.
- All copy runs together use at most the largest of these limits.
- A copy run without a running task may start one beyond the number of cores, if a connection is
  free. Otherwise, with few cores, one hanging session would stop the copies of all other tables.
- If several copy runs could start a task, the policy chooses one: :func:`least_left_first`.
- All copy runs of a subscription together keep its rate limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Condition, Lock
from typing import TYPE_CHECKING

from pgsluice.config import SubscriptionConfig
from pgsluice.spark.jobs.tasks import tasks_at_once
from pgsluice.subscription.base.options import copy_tasks_beside_stream
from pgsluice.subscription.base.waits import WAITS, Waits

if TYPE_CHECKING:
    from pgsluice.spark.session.starting_context import ContextOnDemand
    from pgsluice.subscription.lifecycle.tables import SubscriptionTables

_LATE_S = 1.0
"""How late a task may start and still count as started on time, in seconds."""


def least_left_first(slots: CopySlots, others: Iterable[CopySlots]) -> bool:
    """The policy: the copy run with the fewest bytes left to read may start a task.

    So a later, smaller table does not wait for a large one; the large one pauses meanwhile.

    Args:
        others: the other copy runs that could start a task.
    """
    left = slots.wanted_bytes or 0
    return not any(other.wanted_bytes is not None and other.wanted_bytes < left for other in others)


class CopyScheduler:
    """Shares Spark's cores and the source's connections among the copy runs of a run.

    Args:
        spark: Spark's context, which is asked for when a copy run has something to read.

    Attributes:
        slots: the slots of all copy runs.
        changed: a condition that protects the slots and is notified when they change.
    """

    def __init__(self, spark: ContextOnDemand) -> None:
        self.spark = spark
        self.changed = Condition()
        self.slots: list[CopySlots] = []
        self._tables: list[SubscriptionTables] = []

    def share(
        self, settings: SubscriptionConfig, tables: SubscriptionTables, waits: Waits = WAITS
    ) -> CopyShare:
        """The share of a subscription."""
        self._tables.append(tables)
        return CopyShare(self, settings, waits)

    @property
    def is_beside_stream(self) -> bool:
        """Whether copies run while other tables get changes."""
        return any(tables.is_streaming for tables in self._tables)

    def is_next(self, slots: CopySlots) -> bool:
        """Whether a copy run may start a task now; the caller holds ``changed``."""
        others = filter(self.has_room, self.slots)
        return self.has_room(slots) and least_left_first(slots, others)

    def has_room(self, slots: CopySlots) -> bool:
        """Whether the limits allow another task of a copy run, regardless of other copy runs."""
        of_subscription = [other for other in self.slots if other.share is slots.share]
        for group in (self.slots, of_subscription):
            running = sum(other.running for other in group)
            most = max(other.most for other in group) + (0 if slots.running else 1)
            if running >= min(most, max(other.connections for other in group)):
                return False
        return True


class CopyShare:
    """A subscription's share in the copies of a run.

    Attributes:
        settings: the subscription's settings. Running copy runs keep theirs, except ``copy_cores``.
        scheduler: shares cores and connections among the copies of the run.
    """

    def __init__(
        self, scheduler: CopyScheduler, settings: SubscriptionConfig, waits: Waits
    ) -> None:
        self.settings = settings
        self.waits = waits
        self.rate = CopyRate(settings.copy_rate)
        self.scheduler = scheduler

    def cores(self, *, is_alone: bool) -> int:
        """How many of Spark's cores the subscription's copies may use now."""
        cores = tasks_at_once(self.scheduler.spark())
        if is_alone or not self.scheduler.is_beside_stream:
            return cores
        return copy_tasks_beside_stream(self.settings, cores)

    def join(self, connections: int, *, is_alone: bool = False) -> CopySlots:
        """Register a new copy run, with as many connections as the subscription allows; its slots
        are valid until it leaves."""
        slots = CopySlots(self, connections, is_alone)
        slots.refresh()
        with self.scheduler.changed:
            self.scheduler.slots.append(slots)
        return slots


@dataclass(slots=True, eq=False)
class CopySlots:
    """One copy run in the scheduler: each of its tasks needs a connection to the source and one of
    Spark's cores.

    Attributes:
        connections: how many connections its subscription allows.
        most: how many cores the subscription's copies may use, at the last refresh.
        wanted_bytes: how many bytes it has left to read while it waits for a task; None: it does
            not wait.
        has_ended_task: a task has ended since the last :meth:`acquire`.
    """

    share: CopyShare
    connections: int
    _is_alone: bool
    most: int = 1
    running: int = 0
    wanted_bytes: int | None = None
    has_ended_task: bool = False

    @property
    def at_once(self) -> int:
        """How many tasks the subscription may run at once, at the last refresh."""
        return max(1, min(self.most, self.connections))

    @property
    def waits_for(self) -> str:
        """What the copy run waits for while it reads nothing, as text for the user; empty:
        nothing."""
        if self.running:
            return ""
        if self.share.rate.wait_s():
            return "the rate that copy_rate allows"
        return "a turn among the copies" if self.wanted_bytes is not None else ""

    def refresh(self) -> int:
        """Update how many tasks the subscription may run now."""
        self.most = self.share.cores(is_alone=self._is_alone)
        return self.at_once

    def acquire(self, left_bytes: int, timeout_s: float) -> bool:
        """Wait until another task may start; :meth:`release` follows its end.

        Args:
            left_bytes: how many bytes the copy run has not started to read.

        Returns:
            False: the time is over, or a task of the copy run has ended.
        """
        ends_at, changed = time.monotonic() + timeout_s, self.share.scheduler.changed
        with changed:
            while not self.has_ended_task:  # its results come first
                rate_s = self.share.rate.wait_s()
                self.wanted_bytes = None if rate_s else left_bytes
                if not rate_s and self.share.scheduler.is_next(self):
                    self.wanted_bytes = None
                    self.running += 1
                    return True
                timeout_s = ends_at - time.monotonic()
                if timeout_s <= 0:
                    return False
                changed.wait(min(timeout_s, rate_s or timeout_s))
            self.has_ended_task = False
            return False

    def release(self, _: object = None) -> None:
        """Note that a task of the copy run has ended."""
        with self.share.scheduler.changed:
            self.running -= 1
            self.has_ended_task = True
            self.share.scheduler.changed.notify_all()

    def rest(self) -> None:
        """Withdraw from scheduling for now: the copy run neither waits nor makes others wait."""
        with self.share.scheduler.changed:
            self.wanted_bytes = None
            self.share.scheduler.changed.notify_all()

    def leave(self) -> None:
        """Remove the copy run after the end of all its tasks."""
        with self.share.scheduler.changed:
            self.share.scheduler.slots.remove(self)
            self.share.scheduler.changed.notify_all()


class CopyRate:
    """A rate limit: no task starts before earlier ones have used up their time; None: no limit.

    Callers poll only now and then, so a task may start late. The delay does not move the start of
    the next one.
    """

    def __init__(
        self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_limited = bytes_per_s is not None
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = Lock()
        self._free_at = clock()

    def wait_s(self) -> float:
        """How many seconds to wait before another task may start; 0: none."""
        return max(0.0, self._free_at - self._clock())

    def begin(self, size_bytes: int) -> None:
        """Count a task that starts."""
        if self._bytes_per_s is not None:
            with self._lock:
                began_at = max(self._clock() - _LATE_S, self._free_at)
                self._free_at = began_at + size_bytes / self._bytes_per_s

    def give_back(self, size_bytes: int) -> None:
        """Undo the count of a task that could read nothing."""
        if self._bytes_per_s is not None:
            with self._lock:
                self._free_at -= size_bytes / self._bytes_per_s
