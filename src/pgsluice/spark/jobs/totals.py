"""How many jobs and tasks this process has given to Spark, for metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Since the process started.

    Attributes:
        failed_jobs: that ended with an error.
        retried_tasks: that succeeded, but not at Spark's first attempt.
        lost_workers: attempts at tasks that ended with their Python worker.
    """

    jobs: int = 0
    tasks: int = 0
    failed_jobs: int = 0
    retried_tasks: int = 0
    lost_workers: int = 0


class _Totals:
    lock = threading.Lock()
    now = JobTotals()


def count(**added: int) -> None:
    """Add to the totals, by their names; from any thread."""
    with _Totals.lock:
        now = _Totals.now
        _Totals.now = replace(now, **{name: getattr(now, name) + n for name, n in added.items()})


def job_totals() -> JobTotals:
    """How many jobs and tasks this process has given to Spark so far."""
    return _Totals.now
