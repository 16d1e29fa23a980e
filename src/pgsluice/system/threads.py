"""Background threads that keep their error, and pauses that grow between attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class WorkThread(threading.Thread):
    """A background thread that keeps the error that ended its work.

    Attributes:
        error: None while the work runs, and after it succeeded.
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
        """Raise the error that ended the work, if there is one."""
        if self.error is not None:
            raise self.error


class Backoff:
    """Pauses between attempts, which grow with each failure in a row; the last one repeats."""

    def __init__(self, pauses_s: Sequence[float]) -> None:
        self._pauses_s = pauses_s
        self._failures = 0

    @property
    def longest_s(self) -> float:
        """The longest pause, in seconds."""
        return self._pauses_s[-1]

    def succeeded(self) -> None:
        """Reset after a success: the next failure counts as the first."""
        self._failures = 0

    def failed(self) -> float:
        """Count a failure and return the pause before the next attempt, in seconds."""
        pause_s = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
        self._failures += 1
        return pause_s
