"""Retries in the planning process: Spark itself ends a query at the first driver-side error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pgsluice.errors import SourceUnreachable, SpoolError

T = TypeVar("T")

ATTEMPTS = 5
FIRST_PAUSE_S = 0.1


def retry_transient(call: Callable[[], T]) -> T:
    """Call; after a transient error, call again with growing pauses, ATTEMPTS times at most."""
    for attempt in range(1, ATTEMPTS):
        try:
            return call()
        except (OSError, SourceUnreachable, SpoolError) as error:
            if not is_transient(error):
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    return call()


def is_transient(error: Exception) -> bool:
    """Whether another try may succeed: an unreachable server or a failed read of the disk.

    A hole in the spool is permanent.
    """
    if isinstance(error, SpoolError):
        return type(error) is SpoolError and isinstance(error.__cause__, OSError)
    return True
