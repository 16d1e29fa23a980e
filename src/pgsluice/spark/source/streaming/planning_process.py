"""The process in which Spark plans the batches of a query, one for each query.

Spark ends a query at the first error in this process, so transient errors are retried. It ends the
process by SIGTERM, without a call of ``stop``.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pgsluice.errors import SourceUnreachable, SpoolError
from pgsluice.hints import COPY_ALL_AGAIN

T = TypeVar("T")

_PAUSES_S = (0.2, 0.4, 0.8, 1.6)
"""The pauses before further attempts, in seconds."""
_START_AGAIN = "set another checkpointLocation, and the option starting_position"
"""The hint for changes that are lost: a query has no configuration to drop."""


def retry_transient(call: Callable[[], T], pauses_s: Sequence[float] = _PAUSES_S) -> T:
    """Call a function; repeat it a few times after transient errors, with growing pauses."""
    for pause_s in pauses_s:
        try:
            return call()
        except (OSError, SourceUnreachable):
            pass
        except SpoolError as error:
            error.hint = error.hint and error.hint.replace(COPY_ALL_AGAIN, _START_AGAIN)
            # A failed read of the disk is transient; a hole in the spool is permanent.
            if type(error) is not SpoolError or not isinstance(error.__cause__, OSError):
                raise
        time.sleep(pause_s)
    return call()


def exit_on_sigterm() -> None:
    """Exit on SIGTERM as at the end of a program, so that atexit functions run."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
