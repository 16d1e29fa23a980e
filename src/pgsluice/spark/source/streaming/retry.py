"""Retries in the planning process: Spark itself ends a query at the first driver-side error."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pgsluice.errors import SourceUnreachable, SpoolError

T = TypeVar("T")

_PAUSES_S = (0.2, 0.4, 0.8, 1.6)
"""The pauses before further attempts, in seconds."""


def retry_transient(call: Callable[[], T], pauses_s: Sequence[float] = _PAUSES_S) -> T:
    """Call a function; repeat it a few times after transient errors, with growing pauses."""
    for pause_s in pauses_s:
        try:
            return call()
        except (OSError, SourceUnreachable, SpoolError) as error:
            if not is_transient(error):
                raise
            time.sleep(pause_s)
    return call()


def is_transient(error: Exception) -> bool:
    """Whether another try may succeed: an unreachable server or a failed read of the disk.

    A hole in the spool is permanent.
    """
    if isinstance(error, SpoolError):
        return type(error) is SpoolError and isinstance(error.__cause__, OSError)
    return True
