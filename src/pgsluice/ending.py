"""A process that is asked to end has ended soon, whatever it waits for.

A server that does not answer, or a file system that hangs, can hold a thread for ever, and Python
cannot interrupt it. So the end has a deadline: what has not ended by then is left as it is, as by
SIGKILL. That is safe at any moment, since what is durable is whole (contracts: spool).

The deadline is kept by a thread of its own, which a signal reaches through a pipe. So it is kept
also while the main thread is inside of a call that does not return.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


def limit_the_end(limit_s: float, end: Callable[[int], object]) -> None:
    """From now on, SIGINT and SIGTERM leave this process a limited time to end.

    Both need a handler of Python's; what it does is not changed. To be called once, by the main
    thread.

    Args:
        limit_s: after the first of these signals.
        end: ends the process at once; gets the signal's number.
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


def say_last(text: str, limit_s: float = 0.5) -> None:
    """Write to stderr, and wait for it no longer than this: it may be a pipe that nobody reads."""
    thread = threading.Thread(target=os.write, args=(2, text.encode()), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down
        return
    thread.join(limit_s)
