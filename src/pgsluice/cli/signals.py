"""How commands react to SIGINT, SIGTERM and SIGHUP.

Short commands end at once. Long ones (``run``, ``capture``) get a :class:`StopRequest` and end
cleanly; a second signal ends them at once. After :data:`END_S`, the exit is forced, even if a
server or disk does not respond. SIGHUP makes ``run`` read its configuration again, as it makes a
server read its configuration.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pgsluice.errors import ExitCode, PgsluiceError
from pgsluice.system.ending import limit_the_end, say_last

END_S = 8.0
"""How long a command may take to end after a signal, in seconds."""
_SHOW_CURSOR = b"\x1b[?25h"


@dataclass(slots=True)
class StopRequest:
    """Whether a signal asked the command to stop: the event and the number are of the first one."""

    event: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code: 130 after SIGINT, 143 after SIGTERM, 0 without a signal."""
        return 0 if self.signal_number is None else 128 + self.signal_number


def end_on_signals() -> None:
    """Make SIGTERM raise SystemExit with code 143, so that clean-up code runs.

    SIGINT raises KeyboardInterrupt already. After either, the process ends within :data:`END_S`.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.TERMINATED))
        limit_the_end(END_S, _end_now)


def _end_now(number: int) -> None:
    """End the process without clean-up; its children end when their pipes close."""
    say_last(
        f"pgsluice: forced exit: a server or disk did not respond within {END_S:g} s\n"
        "  → no data is lost; the next start resumes\n"
    )
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), _SHOW_CURSOR)
    os._exit(128 + number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within this context, the first SIGINT or SIGTERM only sets the request.

    Interrupted work may fail with any error: after a signal, an error ends the command with the
    signal's exit code.
    """
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.signal_number is not None:
            raise SystemExit(128 + number)
        request.signal_number = number
        request.event.set()

    previous: dict[signal.Signals, Any] = {
        number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield request
    except PgsluiceError:
        if request.signal_number is None:
            raise
        raise SystemExit(request.exit_code) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def event_on_sighup() -> Iterator[threading.Event]:
    """A context in which SIGHUP sets the event: a run then reads its configuration."""
    event = threading.Event()
    previous = signal.signal(signal.SIGHUP, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGHUP, previous)
