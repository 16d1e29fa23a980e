"""When a task of a copy may begin: all copy runs of a run read one source and share its cores.

A copy run copies tables of one subscription under one snapshot, and a run may have several. Each
task has one connection to the source. The rules:

- The copy runs of a subscription have at most as many connections as the subscription allows, and
  at most as many tasks at a time as it may have of Spark's cores.
- All of them have at most as many of both as the subscription that allows the most.
- One without a task may have one more than the cores, if a connection is left. Else one session
  that hangs, where there are few cores, would stop the copies of all other tables.
- Of those that could begin a task, the policy chooses one: :func:`least_left_first`.
- The copy runs of a subscription together read no more than its rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Condition, Lock
from typing import TYPE_CHECKING, Protocol

from pgsluice.config import SubscriptionConfig
from pgsluice.spark.jobs.tasks import tasks_at_once
from pgsluice.subscription.base.options import copy_tasks_beside_stream

if TYPE_CHECKING:
    from pgsluice.spark.session.on_demand import ContextOnDemand

_LATE_S = 1.0
"""By how much a task that begins late may have been meant to begin earlier."""


def least_left_first(slots: CopySlots, others: Iterable[CopySlots]) -> bool:
    """The policy: the copy run with the least left to read begins a task.

    So a table that comes later does not wait behind a large one, which pauses meanwhile.

    Args:
        others: those that could begin a task, too.
    """
    left = slots.wanted_bytes or 0
    return not any(other.wanted_bytes is not None and other.wanted_bytes < left for other in others)


class Stream(Protocol):
    """What the scheduler asks of a subscription's tables."""

    @property
    def is_streaming(self) -> bool:
        """Whether changes are applied to a table."""


class CopyScheduler:
    """Shares Spark's cores and the source's connections among the copy runs of a run.

    Args:
        spark: Spark's context, which is asked for when a copy run has something to read.

    Attributes:
        spark: see above.
        slots: those of all copy runs.
        changed: notified when they have changed; held to change them.
    """

    def __init__(self, spark: ContextOnDemand) -> None:
        self.spark = spark
        self.changed = Condition()
        self.slots: list[CopySlots] = []
        self._streams: list[Stream] = []

    def share(self, settings: SubscriptionConfig, stream: Stream) -> CopyShare:
        """The share of a subscription.

        Args:
            stream: its tables.
        """
        self._streams.append(stream)
        return CopyShare(self, settings)

    @property
    def is_beside_stream(self) -> bool:
        """Whether copies run beside tables that changes are applied to."""
        return any(stream.is_streaming for stream in self._streams)

    def is_next(self, slots: CopySlots) -> bool:
        """Whether a copy run may begin a task now; the caller holds ``changed``."""
        others = filter(self._has_room, self.slots)
        return self._has_room(slots) and least_left_first(slots, others)

    def _has_room(self, slots: CopySlots) -> bool:
        """Whether another task of a copy run is allowed, were it alone."""
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
        settings: the subscription's. Copy runs that have begun keep theirs, but for ``copy_cores``.
        rate: of all its copies.
    """

    def __init__(self, scheduler: CopyScheduler, settings: SubscriptionConfig) -> None:
        self.settings = settings
        self.rate = CopyRate(settings.copy_rate)
        self._scheduler = scheduler

    @property
    def spark(self) -> ContextOnDemand:
        """Spark's context, which is started when it is first asked for."""
        return self._scheduler.spark

    @property
    def is_beside_stream(self) -> bool:
        """Whether changes are applied to tables of the run meanwhile."""
        return self._scheduler.is_beside_stream

    def cores(self, *, is_alone: bool) -> int:
        """How many of Spark's cores its copies may have now.

        Args:
            is_alone: the run applies changes only afterwards.
        """
        cores = tasks_at_once(self.spark())
        if is_alone or not self.is_beside_stream:
            return cores
        return copy_tasks_beside_stream(self.settings, cores)

    def join(self, connections: int, *, is_alone: bool = False) -> CopySlots:
        """The slots of a new copy run, until it leaves.

        Args:
            connections: how many the subscription allows.
            is_alone: the run applies changes only afterwards.
        """
        slots = CopySlots(self, self._scheduler, connections, is_alone)
        slots.refresh()
        with self._scheduler.changed:
            self._scheduler.slots.append(slots)
        return slots


@dataclass(slots=True, eq=False)
class CopySlots:
    """One copy run among those of a run: each of its tasks needs a lease.

    Attributes:
        share: its subscription's.
        connections: how many its subscription allows.
        most: how many of Spark's cores its subscription's copies may have, as last asked.
        running: how many tasks it has.
        wanted_bytes: what it has left to read while it waits to begin a task; None: it does not.
        has_ended_task: one has ended since it was told so.
    """

    share: CopyShare
    _scheduler: CopyScheduler
    connections: int
    _is_alone: bool
    most: int = 1
    running: int = 0
    wanted_bytes: int | None = None
    has_ended_task: bool = False

    @property
    def is_beside_stream(self) -> bool:
        """Whether changes are applied to other tables meanwhile."""
        return self.share.is_beside_stream

    @property
    def at_once(self) -> int:
        """How many tasks the subscription may have, as last asked."""
        return max(1, min(self.most, self.connections))

    @property
    def waits_for(self) -> str:
        """What it waits for if it reads nothing, for people; empty: for nothing."""
        if self.running:
            return ""
        if self.share.rate.wait_s():
            return "the rate that copy_rate allows"
        return "a turn among the copies" if self.wanted_bytes is not None else ""

    def refresh(self) -> int:
        """Ask how many tasks the subscription may have now."""
        self.most = self.share.cores(is_alone=self._is_alone)
        return self.at_once

    def acquire(self, left_bytes: int, timeout_s: float) -> CopyLease | None:
        """Wait until another task may begin.

        Args:
            left_bytes: what the copy run has not begun to read.
            timeout_s: how long to wait at most.

        Returns:
            the right to run it; None: the time is over, or a task of the copy run has ended.
        """
        ends_at, changed = time.monotonic() + timeout_s, self._scheduler.changed
        with changed:
            while not self.has_ended_task:  # its results come first
                rate_s = self.share.rate.wait_s()
                self.wanted_bytes = None if rate_s else left_bytes
                if not rate_s and self._scheduler.is_next(self):
                    self.wanted_bytes = None
                    self.running += 1
                    return CopyLease(self)
                timeout_s = ends_at - time.monotonic()
                if timeout_s <= 0:
                    return None
                changed.wait(min(timeout_s, rate_s or timeout_s))
            self.has_ended_task = False
            return None

    def release(self) -> None:
        """A task of the copy run has ended."""
        with self._scheduler.changed:
            self.running -= 1
            self.has_ended_task = True
            self._scheduler.changed.notify_all()

    def rest(self) -> None:
        """Begin no task for now: the copy run waits for nobody, and nobody waits for it."""
        with self._scheduler.changed:
            self.wanted_bytes = None
            self._scheduler.changed.notify_all()

    def leave(self) -> None:
        """The copy run has ended, with all its tasks."""
        with self._scheduler.changed:
            self._scheduler.slots.remove(self)
            self._scheduler.changed.notify_all()


@dataclass(frozen=True, slots=True)
class CopyLease:
    """The right to run one task: a connection to the source, and a core of Spark's."""

    _slots: CopySlots

    def release(self, _: object = None) -> None:
        """The task has ended."""
        self._slots.release()


class CopyRate:
    """Keeps what is read at a rate: no task begins before the earlier ones have had their time.

    Whoever asks does so only now and then, so a task may begin late. The next one then may begin as
    soon as if it had not.

    Args:
        bytes_per_s: None for no limit.
        clock: the time in seconds, from anywhere on.
    """

    def __init__(
        self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = Lock()
        self._free_at = clock()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s is not None

    def wait_s(self) -> float:
        """After how many seconds another task may begin; 0: now."""
        return max(0.0, self._free_at - self._clock())

    def begin(self, size_bytes: int) -> None:
        """Count a task that begins."""
        if self._bytes_per_s is not None:
            with self._lock:
                began_at = max(self._clock() - _LATE_S, self._free_at)
                self._free_at = began_at + size_bytes / self._bytes_per_s

    def give_back(self, size_bytes: int) -> None:
        """Count a task no more that began and could read nothing."""
        if self._bytes_per_s is not None:
            with self._lock:
                self._free_at -= size_bytes / self._bytes_per_s
