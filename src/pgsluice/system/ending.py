"""The deadline for the shutdown of a process: it ends soon after a signal, whatever it waits for.

A server that does not answer, or a file system that hangs, can block a thread for ever, and Python
cannot interrupt it. So after a deadline, the process exits without waiting for its threads, as by
SIGKILL. That is safe at any moment: every durable file is complete (contracts: spool). A separate
thread enforces the deadline, which a signal reaches through a pipe, even while the main thread is
inside a call that does not return.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)
_LAST_S = 0.5


def limit_the_end(limit_s: float, end: Callable[[int], object]) -> None:
    """Limit the time that this process may take to exit after SIGINT or SIGTERM.

    Both signals need a Python handler, which keeps working as before. Call this once, in the main
    thread.

    Args:
        limit_s: seconds from the first signal to the forced exit.
        end: called with the signal's number to end the process at once.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)

    def watch() -> None:
        number = 0
        while number not in _ASKED_TO_END:
            number = os.read(reads, 1)[0]
        time.sleep(limit_s)
        end(number)

    threading.Thread(target=watch, name="pgsluice end", daemon=True).start()


def say_last(text: str) -> None:
    """Write a last message to stderr, with a time limit: stderr may be a pipe that nobody reads."""
    thread = threading.Thread(target=os.write, args=(2, text.encode()), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down
        return
    thread.join(_LAST_S)
