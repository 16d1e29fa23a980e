"""The files that an attempt writes: if it fails before its commit, it deletes them.

Attempts are repeated every few seconds while a disk is full, here or elsewhere. If each left its
files, they would take all the room that somebody makes. What a killed attempt has left, maintenance
deletes after a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta

from pgsluice.failpoints import failpoint
from pgsluice.sinks.contract import Overtaken

ORPHAN_AGE = timedelta(hours=24)
"""Files of a killed attempt that are older are deleted."""

_deletions: ContextVar[list[Callable[[], object]] | None] = ContextVar("deletions", default=None)


@contextmanager
def attempt(delete: Callable[[], object] | None = None) -> Iterator[None]:
    """A block that deletes the files which it has written, if it raises.

    A block in such a block leaves that to the outer one.

    Args:
        delete: deletes files that were written before the block.
    """
    before = [] if delete is None else [delete]
    if (outer := _deletions.get()) is not None:
        outer += before
        yield
        return
    deletions: list[Callable[[], object]] = [*before]
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


@contextmanager
def commits() -> Iterator[None]:
    """A block that makes a version of the table: what was written stays, since the version may name
    it, unless another commit has made this version (Overtaken)."""
    deletions = _deletions.get()
    if deletions is None:
        yield
        return
    written = [*deletions]
    deletions.clear()
    try:
        yield
    except Overtaken:
        deletions += written
        raise
