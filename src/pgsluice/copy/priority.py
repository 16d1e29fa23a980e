"""Runs a copy's work at low priority, behind batches that need the same cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

_NICENESS = 10
"""The nice value: a tenth of a core while another process needs it, else all of it."""

W = TypeVar("W")
R = TypeVar("R")
_of_thread = threading.local()


def stand_back(run: Callable[[W], R], work: W) -> R:
    """Run a function at a lower priority than the rest of the process.

    An unprivileged process cannot raise its priority again, and Spark reuses its Python processes
    for batches. So only a new thread gets the low priority. Threads that it starts inherit the
    priority, so it must not be the first to use a permanent thread pool. Only Linux has priorities
    of threads.
    """
    if sys.platform != "linux":
        return run(work)
    if not hasattr(_of_thread, "low"):
        # It is kept for the next work: of each thread, the allocators would keep some memory.
        lower = partial(os.nice, _NICENESS)
        _of_thread.low = ThreadPoolExecutor(1, "pgsluice-copy", lower)
    low: ThreadPoolExecutor = _of_thread.low
    return low.submit(run, work).result()
