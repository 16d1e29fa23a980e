"""CPU time and memory of the processes of a run, and how many have ended unexpectedly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil

from pgsluice.monitor.metrics.samples import Sample
from pgsluice.system.processes import lost_processes


def process_samples(capture_pid: int | None) -> Iterator[Sample]:
    """The figures of this process, of capture, and of Spark with its workers.

    Args:
        capture_pid: capture's process; None: it does not run.
    """
    groups: dict[str, list[psutil.Process]] = {}
    own = psutil.Process()
    groups["capture" if own.pid == capture_pid else "run"] = [own]
    for child in own.children(recursive=True):
        groups.setdefault("capture" if child.pid == capture_pid else "spark", []).append(child)
    for name, processes in groups.items():
        cpu_s = memory = 0.0
        for process in processes:
            with suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                cpu_s += times.user + times.system
                if name == "spark":  # of workers that have ended, which another one has waited for
                    cpu_s += times.children_user + times.children_system
                memory += process.memory_info().rss
        yield Sample("pgsluice_process_cpu_seconds_total", cpu_s, (name,))
        yield Sample("pgsluice_process_resident_memory_bytes", memory, (name,))
    if own.pid != capture_pid:
        for part, count in lost_processes().items():
            yield Sample("pgsluice_processes_lost_total", count, (part.name.lower(),))
