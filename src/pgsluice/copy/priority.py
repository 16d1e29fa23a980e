"""Lets a copy's work stand back where the stream's wants the same cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

_NICENESS = 10
"""A tenth of a core while another process wants it, and all of it while none does."""

W = TypeVar("W")
R = TypeVar("R")
_of_thread = threading.local()


def stand_back(run: Callable[[W], R], work: W) -> R:
    """Run something with a lower priority than the rest of the process has.

    A process without privileges cannot raise its priority again, and Spark has its Python processes
    apply changes afterwards. So another thread has the lower priority. The threads that it starts
    have it, too: it must not be the first to use a pool of threads that is kept. Other systems than
    Linux have no priorities of threads.
    """
    if sys.platform != "linux":
        return run(work)
    if not hasattr(_of_thread, "low"):
        # It is kept for the next work: of each thread, the allocators would keep some memory.
        lower = partial(os.nice, _NICENESS)
        _of_thread.low = ThreadPoolExecutor(1, "pgsluice-copy", lower)
    low: ThreadPoolExecutor = _of_thread.low
    return low.submit(run, work).result()
