"""Locks of a spool: one process writes it, and one process runs each subscription."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pgsluice.errors import SpoolBusy
from pgsluice.spool.layout import (
    BARRIER_LOCK,
    SUBSCRIPTION_LOCK,
    WRITER_LOCK,
    subscription_folder,
)
from pgsluice.spool.storage import make_folder


class FileLock:
    """A lock that the kernel releases when the process ends; a context manager.

    Args:
        path: the file to lock; created, with its folder, if it does not exist.
        message, hint: of the error when another process holds the lock.
    """

    def __init__(self, path: Path, message: str, hint: str) -> None:
        self._path = path
        self._message = message
        self._hint = hint
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, without waiting.

        Raises:
            SpoolBusy: another process holds the lock.
            SpoolError: the folder cannot be created.
        """
        make_folder(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise SpoolBusy(self._message, hint=self._hint, path=str(self._path)) from error
        self._descriptor = descriptor

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


def writer_lock(spool_path: Path) -> FileLock:
    """The lock of the process that writes a spool."""
    return FileLock(
        spool_path / WRITER_LOCK,
        f"a capture writes to the spool {spool_path}",
        "a slot has one capture: stop the other one, or let it work",
    )


def subscription_lock(spool_path: str | Path, name: str) -> FileLock:
    """The lock of the process that runs a subscription and writes its record.

    Raises:
        SpoolError: the name is not a subscription's.
    """
    return FileLock(
        subscription_folder(spool_path, name) / SUBSCRIPTION_LOCK,
        f"another process runs the subscription {name}",
        "stop the other one first, or let it work",
    )


def barrier_lock(folder: Path) -> FileLock:
    """The lock of the process that verifies a subscription; without it a barrier is void."""
    return FileLock(
        folder / BARRIER_LOCK,
        f"another process verifies the subscription {folder.name}",
        "wait until it has ended",
    )
