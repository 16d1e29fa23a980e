"""How many jobs and tasks this process has given to Spark, for metrics."""

from __future__ import annotations

import threading
from collections.abc import Mapping

_LOCK = threading.Lock()
_TOTALS = {"jobs": 0, "tasks": 0, "job_failures": 0, "task_retries": 0, "workers_lost": 0}


def count(**added: int) -> None:
    """Add to the totals, by their names; from any thread."""
    with _LOCK:
        for name, number in added.items():
            _TOTALS[name] += number


def job_totals() -> Mapping[str, int]:
    """What this process has given to Spark since it started, by the names of the metrics: jobs and
    those that failed, tasks and those that succeeded at a later attempt, and attempts that ended
    with their Python worker."""
    with _LOCK:
        return dict(_TOTALS)
