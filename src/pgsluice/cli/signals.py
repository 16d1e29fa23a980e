"""SIGINT and SIGTERM: what a command does when it is asked to stop.

Short commands end at once. Long ones (``run``, ``capture``) take a :class:`StopRequest` and
finish or abandon what they are at cleanly; a second signal ends them at once. SIGHUP asks
``run`` to read its publications again, as it asks a server for its configuration.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


@dataclass(slots=True)
class StopRequest:
    """Whether somebody asked to stop.

    Attributes:
        event: set by the first signal; what works waits on it.
        signal_number: which it was; None: nobody asked.
    """

    event: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """130 or 143 after a signal, else 0."""
        return 0 if self.signal_number is None else 128 + self.signal_number


def end_on_sigterm() -> None:
    """Make SIGTERM end the program with 143, running what cleans up on the way."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """While it is entered, the first SIGINT or SIGTERM only sets the request."""
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.signal_number is not None:
            raise SystemExit(128 + number)
        request.signal_number = number
        request.event.set()

    before: dict[signal.Signals, Any] = {
        one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield request
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def asked_by_sighup() -> Iterator[threading.Event]:
    """While it is entered, SIGHUP sets the event; where there is no SIGHUP, nothing does."""
    asked = threading.Event()
    number = getattr(signal, "SIGHUP", None)
    if number is None:
        yield asked
        return
    before = signal.signal(number, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(number, before)
