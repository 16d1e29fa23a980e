"""The files that an attempt writes: if it fails before its commit, it deletes them.

Attempts are repeated every few seconds while a disk is full, here or elsewhere. If each left its
files, they would take all the room that somebody makes. What a killed attempt has left, maintenance
deletes after a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from pgsluice.failpoints import failpoint

_deletions: ContextVar[list[Callable[[], object]] | None] = ContextVar("deletions", default=None)


@contextmanager
def attempt() -> Iterator[None]:
    """A block that deletes the files which it has written, if it raises.

    A block in such a block leaves that to the outer one.
    """
    if _deletions.get() is not None:
        yield
        return
    deletions: list[Callable[[], object]] = []
    token = _deletions.set(deletions)
    try:
        yield
    except BaseException:
        # The first error counts. After another one nothing more is tried: each try may wait for a
        # store that is away.
        with suppress(Exception):
            for delete in deletions:
                failpoint("delta.clean_up")
                with suppress(FileNotFoundError):
                    delete()
        raise
    finally:
        _deletions.reset(token)


def writes(delete: Callable[[], object]) -> None:
    """Say how a file is deleted, before it is written; outside of a block of :func:`attempt`, no
    one does so."""
    if (deletions := _deletions.get()) is not None:
        deletions.append(delete)


def commits() -> None:
    """Keep what was written: from now on, a version of the table may name it."""
    if (deletions := _deletions.get()) is not None:
        deletions.clear()
