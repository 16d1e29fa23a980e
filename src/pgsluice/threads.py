"""A thread that keeps the error that ended it, and pauses that grow from attempt to attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class WorkThread(threading.Thread):
    """Works in the background of its process, and keeps the error that ended the work.

    Attributes:
        error: None while it works, and after work that ended well.
    """

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def raise_error(self) -> None:
        """Raise what ended the work, if it was an error."""
        if self.error is not None:
            raise self.error


class Backoff:
    """Pauses that grow with each failure in a row; the last one repeats."""

    def __init__(self, pauses_s: Sequence[float]) -> None:
        self._pauses_s = pauses_s
        self._failures = 0

    @property
    def longest_s(self) -> float:
        """The pause that repeats."""
        return self._pauses_s[-1]

    def succeeded(self) -> None:
        """The next failure is the first one in a row."""
        self._failures = 0

    def failed(self) -> float:
        """Count a failure; how long to wait before the next attempt."""
        pause_s = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
        self._failures += 1
        return pause_s
