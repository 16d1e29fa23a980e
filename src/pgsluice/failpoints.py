"""Failpoints: named places where a test kills the process, blocks it, or fakes a full disk.

``PGSLUICE_FAILPOINTS="spool.before_rename=kill@3,spool.write=enospc"`` arms them for one process
and its children: ``kill`` sends SIGKILL to the process itself. ``enospc`` and ``eio`` raise the
OSError of a real disk. ``@n`` takes effect at the n-th pass of the place (errors: from the n-th
pass on). ``kill:PATH`` kills only the process that creates the file first. ``wait:PATH`` waits
while the file exists. Without the variable, a failpoint costs one attribute lookup.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_ERRORS = {"enospc": errno.ENOSPC, "eio": errno.EIO}
_POLL_S = 0.01


class _Failpoint:
    def __init__(self, action: str) -> None:
        action, _, self.path = action.partition(":")
        kind, _, times = action.partition("@")
        if kind not in ("kill", "wait", *_ERRORS):
            raise ValueError(f"PGSLUICE_FAILPOINTS: {kind!r} is not an action")
        self.kind = kind
        self.remaining = int(times) if times else 1

    def __call__(self, name: str) -> None:
        self.remaining -= 1
        if self.remaining > 0:
            return
        if self.kind == "kill":
            self._kill()
            return
        if self.kind == "wait":
            while Path(self.path).exists():
                time.sleep(_POLL_S)
            return
        number = _ERRORS[self.kind]
        raise OSError(number, os.strerror(number), f"failpoint {name}")

    def _kill(self) -> None:
        with suppress(FileExistsError):
            if self.path:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)


_FAILPOINTS: dict[str, _Failpoint] = {}


def arm(specification: str) -> None:
    """Arm this process as the environment variable would; an empty text disarms it. Raises
    ValueError for anything but a list of ``name=action``."""
    pairs = [one.partition("=") for one in specification.split(",") if one.strip()]
    armed = {name.strip(): _Failpoint(action.strip()) for name, _, action in pairs}
    _FAILPOINTS.clear()
    _FAILPOINTS.update(armed)


arm(os.environ.get("PGSLUICE_FAILPOINTS", ""))


def failpoint(name: str) -> None:
    """Run the action that is armed for the place ``name``; do nothing if none is."""
    if _FAILPOINTS and (point := _FAILPOINTS.get(name)) is not None:
        point(name)
