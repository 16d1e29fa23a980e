"""Errors of disks as text: which folder has which problem, and how to solve it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import NamedTuple


class DiskTrouble(NamedTuple):
    """A problem of a disk, as text for the user.

    Attributes:
        what: the problem, one sentence.
        hint: how to solve it.
    """

    what: str
    hint: str


_MAKE_ROOM = "make room there"
_TROUBLES = {
    errno.ENOSPC: ("no room is left on the disk of {}", _MAKE_ROOM),
    errno.EDQUOT: ("the quota on the disk of {} is used up", f"raise it, or {_MAKE_ROOM}"),
    errno.EACCES: ("{} cannot be read or written", "give pgsluice's user the permission"),
    errno.EPERM: ("{} cannot be read or written", "give pgsluice's user the permission"),
    errno.EROFS: ("the disk of {} is mounted read-only", "mount it for writing"),
    errno.ENOTDIR: (
        "{} cannot be there: a part of its path is a file",
        "move that file away, or name another path",
    ),
    errno.EEXIST: (
        "{} is a file, or a link to a folder that is not there",
        "mount the disk that the link names, or move the link away",
    ),
    errno.ESTALE: ("the network disk of {} is gone", "mount it again"),
    errno.EIO: ("the disk of {} fails", "look at the machine's log, and mend the disk"),
    errno.EFBIG: ("a file in {} is larger than allowed", "raise the limit (ulimit -f)"),
    errno.EMFILE: ("too many files are open for one more in {}", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("the machine has too many open files for one more in {}", "raise fs.file-max"),
}


def disk_trouble(error: OSError, place: str | None = None) -> DiskTrouble | None:
    """Translate an error of the operating system that concerns a disk; None for any other error.
    ``place``: the folder that was used, if the error does not name a file."""
    trouble = _TROUBLES.get(error.errno or 0)
    if trouble is None:
        return None
    what, hint = trouble
    return DiskTrouble(what.format(error.filename or place or "a folder of pgsluice"), hint)


@contextmanager
def naming(place: PathLike[str] | str) -> Iterator[None]:
    """Add the name of a folder to errors of the operating system that name no file.

    Errors of writes, and errors that Arrow raises, name no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:  # Arrow's of damaged files have none
            error.filename = str(place)
        raise
