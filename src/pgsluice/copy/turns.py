"""Which round of copies may begin a task: all rounds of a run read one source and share its cores.

A round copies tables of one subscription under one snapshot, and a run may have several. Each task
has one connection to the source. The rules:

- The rounds of a subscription have at most as many connections as the subscription allows, and at
  most as many tasks at a time as it may have of Spark's cores.
- All rounds have at most as many of both as the subscription that allows the most.
- A round without a task may have one more than the cores, if a connection is left. Else one session
  that hangs, where there are few cores, would stop the copies of all other tables.
- Of the rounds that could begin a task, the one with the least left to read does. So a table that
  comes later does not wait behind a large one, which pauses meanwhile.
- The rounds of a subscription together read no more than its rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

_LATE_S = 1.0
"""By how much a task that begins late may have been meant to begin earlier."""


class CopyTurns:
    """The rounds of a run; any thread may ask.

    Attributes:
        streams: say for each subscription whether changes are applied to a table of it.
    """

    def __init__(self) -> None:
        self.streams: list[Callable[[], bool]] = []
        self._lock = Lock()
        self._turns: list[CopyTurn] = []

    def is_beside_stream(self) -> bool:
        """Whether copies run beside tables that changes are applied to."""
        return any(is_streaming() for is_streaming in self.streams)

    def join(self, subscription: str, connections: int, cores: Callable[[], int]) -> CopyTurn:
        """A new round takes part, until it leaves.

        Args:
            connections: how many the subscription allows.
            cores: how many of Spark's cores its copies may have now.
        """
        turn = CopyTurn(self, subscription, connections, cores)
        with self._lock:
            self._turns.append(turn)
        return turn

    def leave(self, turn: CopyTurn) -> None:
        """A round has ended."""
        with self._lock:
            self._turns.remove(turn)

    def begin(self, turn: CopyTurn, left_bytes: int) -> bool:
        """Whether a round may begin a task now; then it has begun."""
        with self._lock:
            turn.wanted_bytes = left_bytes
            if not self._may_begin(turn):
                return False
            if any(
                other.wanted_bytes is not None
                and other.wanted_bytes < left_bytes
                and self._may_begin(other)
                for other in self._turns
            ):
                return False
            turn.running += 1
            turn.wanted_bytes = None
            return True

    def _may_begin(self, turn: CopyTurn) -> bool:
        """Whether another task of the round is allowed, were it alone."""
        of_subscription = [
            other for other in self._turns if other.subscription == turn.subscription
        ]
        for turns in (self._turns, of_subscription):
            running = sum(other.running for other in turns)
            most = max(other.most for other in turns) + (0 if turn.running else 1)
            if running >= min(most, max(other.connections for other in turns)):
                return False
        return True


@dataclass(slots=True, eq=False)
class CopyTurn:
    """One round among those of a run.

    Attributes:
        connections: how many its subscription allows.
        most: how many of Spark's cores its subscription's copies may have, as last asked.
        running: how many tasks it has.
        wanted_bytes: what it has left to read while it waits to begin a task; None: it does not.
    """

    _turns: CopyTurns
    subscription: str
    connections: int
    _cores: Callable[[], int]
    most: int = 1
    running: int = 0
    wanted_bytes: int | None = None

    @property
    def is_beside_stream(self) -> bool:
        """Whether changes are applied to other tables meanwhile."""
        return self._turns.is_beside_stream()

    @property
    def at_once(self) -> int:
        """How many tasks the subscription may have, as last asked."""
        return max(1, min(self.most, self.connections))

    def look(self) -> int:
        """Ask how many tasks the subscription may have now."""
        self.most = self._cores()
        return self.at_once

    def begin(self, left_bytes: int) -> bool:
        """Whether the round may begin a task now; then it has begun.

        Args:
            left_bytes: what it has not begun to read.
        """
        return self._turns.begin(self, left_bytes)

    def rest(self) -> None:
        """The round begins no task for now: it waits for nobody, and nobody waits for it."""
        self.wanted_bytes = None

    def end(self) -> None:
        """A task of the round has ended."""
        self.running -= 1

    def leave(self) -> None:
        """The round has ended, with all its tasks."""
        self._turns.leave(self)


class CopyPace:
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
    def has_rate(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s is not None

    def may_begin(self) -> bool:
        """Whether the rate allows another task now."""
        return self._clock() >= self._free_at

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
