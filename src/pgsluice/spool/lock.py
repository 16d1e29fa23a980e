"""The writer's lock of a spool: one process writes, however many read."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pgsluice.errors import SpoolBusy

_LOCK = "writer.lock"


def lock_spool(path: Path) -> int:
    """Take the writer's lock of the spool in a folder that is there.

    Returns:
        a file descriptor; closing it, or the end of the process, gives the lock back.

    Raises:
        SpoolBusy: another process has it.
    """
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SpoolBusy(
            f"another process writes to the spool {path}",
            hint="one capture a slot: stop the other one, or leave the work to it",
            path=str(path),
        ) from error
    return descriptor
