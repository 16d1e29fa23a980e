"""Reports the state of the capture process, which it writes to a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pgsluice.capture import read_health
from pgsluice.events import CaptureState, MetricsEvent
from pgsluice.lsn import Lsn

_POLL_S = 1.0


@contextmanager
def capture_states(spool: Path, report: Callable[[MetricsEvent], None]) -> Iterator[None]:
    """Within this context, report each state of capture, except the last one of an earlier run."""
    ended, previous = threading.Event(), read_health(spool)

    def watch() -> None:
        nonlocal previous
        while not ended.wait(_POLL_S):
            health = read_health(spool)
            if health is None or health == previous:
                continue
            previous = health
            report(
                CaptureState(
                    health.phase,
                    Lsn.parse(health.position),
                    Lsn.parse(health.frontier),
                    health.lag_bytes,
                    health.spool_bytes,
                    health.message,
                    health.times,
                )
            )

    thread = threading.Thread(target=watch, name="pgsluice states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
