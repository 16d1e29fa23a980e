"""Child processes of a run: starts them, checks whether they run, and logs how they ended.

Any process may be killed at any time; the run continues without help. The log says which process
ended, how, and what happens next: :data:`_NEXT` has this for each kind of process.
:data:`_NOT_STARTED` has the reasons why a process cannot be started; :data:`_PASSING` has those
that are temporary.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Part(StrEnum):
    """The kinds of processes; the values are their names in messages."""

    CAPTURE = "capture"
    JVM = "Spark's JVM"
    JAVA = "java -version"
    DAEMON = "the daemon of Spark's Python workers"
    KEEPER = "the snapshot holder of copies"
    PASSWORD_COMMAND = "password_command"  # noqa: S105


_NEXT = {
    Part.CAPTURE: "pgsluice restarts it",
    Part.JVM: "pgsluice restarts Spark",
    Part.DAEMON: "Spark starts another one",
    Part.KEEPER: "pgsluice restarts the unfinished copies",
}
"""The processes that a run watches."""
_NOT_STARTED = {
    errno.EAGAIN: "the system lets this user start no more processes (ulimit -u, or the container's"
    " limit of processes): raise the limit, or end others",
    errno.ENOMEM: "the machine has no memory left: end other programs, or give it more",
    errno.E2BIG: "the environment, or a setting in [spark], is longer than the system lets it be",
    errno.ENOSPC: "make room on the disk of the spool, where Spark's log is written",
    errno.EDQUOT: "raise the quota on the disk of the spool, where Spark's log is written",
    errno.EMFILE: "this process may open no more files: raise the limit (ulimit -n)",
    errno.ENOENT: "was this program removed, or its environment, since the start?",
}
_PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EFAULT, errno.ETXTBSY, errno.EINTR})
_lost: Counter[Part] = Counter()
_PAUSES_S = (0.1, 0.4, 1.5)
"""The pauses before each further attempt to start a process, in seconds."""


def start(part: Part, begin: Callable[[], T], pauses_s: Sequence[float] = _PAUSES_S) -> T:
    """Start a process by ``begin``; all processes of a run are started here.

    After a temporary error (out of memory, process limit, program file busy), it logs a line and
    tries again, a few times.

    Raises:
        OSError: it could not be started.
    """
    for pause_s in pauses_s:
        try:
            return begin()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            what, _ = why_not_started(part, error)
            logger.warning("%s: pgsluice tries again", what)
        time.sleep(pause_s)
    return begin()


def why_not_started(part: Part, error: OSError) -> tuple[str, str | None]:
    """The message and the hint for a process that could not be started."""
    what = f"{part} could not be started: {error.strerror or error}"
    if error.errno == errno.ENOENT:
        what += f": {error.filename}"
    return what, _NOT_STARTED.get(error.errno or 0)


def say_it_ended(part: Part, pid: int, exit_code: int | None) -> None:
    """Log that a process ended, and what happens next; arguments as for :func:`has_ended`."""
    say_next(part, has_ended(part, pid, exit_code))


def say_next(part: Part, why: str) -> None:
    """Log a sentence about what happened, followed by what happens next."""
    _lost[part] += 1
    logger.warning("%s: %s", why, _NEXT[part])


def lost_processes() -> Mapping[Part, int]:
    """How many processes of each kind have ended unexpectedly, of those that a run watches."""
    return {part: _lost[part] for part in _NEXT}


def has_ended(part: Part, pid: int | None = None, exit_code: int | None = None) -> str:
    """A sentence about the end of a process, such as ``capture (process 12) has ended by SIGKILL``.
    The exit code is negative for a signal; None if unknown."""
    process = part if pid is None else f"{part} (process {pid})"
    return f"{process} has ended" + ("" if exit_code is None else f" {_cause(exit_code)}")


def _cause(exit_code: int) -> str:
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    try:
        return f"by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal has no name
        return f"by signal {-exit_code}"


def is_running(pid: int) -> bool:
    """Whether a process with this id runs; a zombie does not count."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    with suppress(OSError):  # not all systems have /proc
        return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    return True
