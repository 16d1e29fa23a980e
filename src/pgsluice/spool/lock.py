"""Locks of a spool: one process writes it, and one process runs each subscription."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from pgsluice.errors import SpoolBusy
from pgsluice.spool.layout import (
    ALERTS_LOCK,
    BARRIER_LOCK,
    SUBSCRIPTION_LOCK,
    WRITER_LOCK,
    subscription_folder,
)
from pgsluice.spool.storage import make_folder

_POLL_S = 0.02


class FileLock:
    """A lock that the kernel releases when the process ends; a context manager.

    Args:
        path: the file to lock; created, with its folder, if it does not exist.
        message, hint: the error's text, and its hint, if another process holds the lock.
        patience_s: how long to wait for the holder, which may be about to end, in seconds.
    """

    def __init__(self, path: Path, message: str, hint: str, patience_s: float = 0.0) -> None:
        self._path = path
        self._message = message
        self._hint = hint
        self._patience_s = patience_s
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; raises SpoolBusy if another process holds it, and SpoolError if its folder
        cannot be created."""
        deadline = time.monotonic() + self._patience_s
        while True:
            # Opened again each time: who held the lock may have deleted the file.
            make_folder(self._path.parent)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(self._path, descriptor):
                    break
                os.close(descriptor)
                continue
            except OSError as error:
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    raise SpoolBusy(self._message, hint=self._hint, path=str(self._path)) from error
            time.sleep(_POLL_S)
        self._descriptor = descriptor

    def is_held(self) -> bool:
        """Whether a process holds the lock; tested by taking a shared lock for a moment."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Release the lock; a no-op if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file still has this path; a lock of another one keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def writer_lock(machine_folder: Path, patience_s: float = 0.0) -> FileLock:
    """The lock of the process on this machine that writes a spool."""
    return FileLock(
        machine_folder / WRITER_LOCK,
        f"another capture process writes to the spool {machine_folder}",
        "stop it first, or leave it running",
        patience_s,
    )


def subscription_lock(machine_folder: Path, name: str, patience_s: float = 0.0) -> FileLock:
    """The lock of the process that runs a subscription on this machine and writes its record;
    raises as :func:`pgsluice.spool.layout.subscription_folder`."""
    return FileLock(
        subscription_folder(machine_folder, name) / SUBSCRIPTION_LOCK,
        f"another process runs the subscription {name}",
        "stop it first, or leave it running",
        patience_s,
    )


def alerts_lock(machine_folder: Path) -> FileLock:
    """The lock of the process on this machine that sends problems to the webhook."""
    return FileLock(
        machine_folder / ALERTS_LOCK, "another process sends problems to the webhook", "leave it"
    )


def barrier_lock(folder: Path) -> FileLock:
    """The lock of the process that verifies a subscription; without it, a barrier is invalid."""
    return FileLock(
        folder / BARRIER_LOCK,
        f"another process verifies the subscription {folder.name}",
        "wait until it has ended",
    )
