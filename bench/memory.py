"""The most memory that each kind of process of a run ever had."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PAUSE_S = 0.2
Peaks = dict[str, int]
"""Bytes by kind: ``driver``, ``capture``, ``JVM``, ``worker``, ``other``."""


@contextmanager
def watched(pid: int) -> Iterator[Peaks]:
    """Watch a run and all processes below it while the block runs; the peaks of each kind.

    A peak is the kernel's high-water mark of what a process has in memory, files that it has mapped
    included.
    """
    peaks: Peaks = {}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_PAUSE_S):
            _note(pid, peaks)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        is_over.set()
        watcher.join()
        _note(pid, peaks)


def as_text(peaks: Peaks) -> str:
    """As ``capture 120 MB, driver 200 MB``."""
    return ", ".join(f"{kind} {peak / 1e6:.0f} MB" for kind, peak in sorted(peaks.items()))


def _note(pid: int, peaks: Peaks) -> None:
    with suppress(psutil.NoSuchProcess):
        run = psutil.Process(pid)
        for process in (run, *run.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                kind = "driver" if process.pid == pid else _kind(process)
                peaks[kind] = max(peaks.get(kind, 0), peak_bytes(process.pid))


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    # Not its name: a process that the JVM has just forked has the name of a thread.
    if Path(process.exe()).name == "java":
        return "JVM"
    if "pgsluice.capture" in command or " capture " in command:
        return "capture"
    return "worker" if "daemon" in command else "other"


def peak_bytes(pid: int) -> int:
    """The most that a process ever had in memory; 0 if the kernel does not say it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
