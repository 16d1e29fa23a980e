"""Values that many requests share, because to make them costs something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
EVERY_S = 5.0
"""How often the status is read and rendered, at most, in seconds."""


class Recent(Generic[T]):
    """A value that is renewed at most once in a period of some seconds; threads may share it.

    Args:
        make: makes the value; one thread at a time calls it.
    """

    def __init__(
        self, make: Callable[[], T], every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._made: tuple[float, T] | None = None

    def __call__(self) -> T:
        """The value."""
        with self._lock:
            if self._made is None or self._clock() - self._made[0] >= self._every_s:
                made = self._make()  # its time does not count: else a slow one would never be kept
                self._made = self._clock(), made
            return self._made[1]
