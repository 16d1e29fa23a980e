"""Deletes the files of an attempt that fails before its commit.

Attempts are repeated every few seconds while a disk is full, here or elsewhere. If each one left
its files, they would use up any room that becomes free. Nobody deletes the files of a killed
attempt here; a run searches for them once a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta

from pgsluice.failpoints import failpoint
from pgsluice.sinks.contract import Overtaken

ORPHAN_AGE = timedelta(hours=24)
"""The age at which files of killed attempts are deleted."""

_deletions: ContextVar[list[Callable[[], object]] | None] = ContextVar("deletions", default=None)


@contextmanager
def attempt(delete: Callable[[], object] | None = None) -> Iterator[None]:
    """A context that deletes the files that were written within it, and by ``delete`` those from
    before it, if it raises. A nested context leaves that to the outer one."""
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
    """Register how to delete a file before it is written; without effect outside of
    :func:`attempt`."""
    if (deletions := _deletions.get()) is not None:
        deletions.append(delete)


@contextmanager
def commits() -> Iterator[None]:
    """A context for a commit. Files stay if it fails, because the version may refer to them, unless
    another commit created this version (Overtaken)."""
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
