"""Waits for changes in the folders of one kind of the spool's files.

On Linux, inotify reports changes: a waiting process uses no CPU, and wakes up at once. On other
systems, and on file systems without inotify, the wait is a short pause, and the caller polls.

Two promised figures depend on this module: an idle run uses less than 3 % of a core, and the time
from a commit to its visibility in the target.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
import weakref
from pathlib import Path

from pgsluice.spool.storage import is_shard

_POLL_S = 0.02
"""The pause without inotify, in seconds."""
_MOVED_FROM, _MOVED_TO, _CREATED, _DELETED = 0x40, 0x80, 0x100, 0x200
_CHANGES = _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED
"""All events that change a folder's mtime, so that a missing notification can be detected."""


class FolderNotices:
    """Waits for changes of a folder, which need not exist yet, and of its newest subfolder, by
    name; only one thread uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = ctypes.CDLL(None)
        self._inotify: int | None = None
        """None: inotify does not seem to work here."""
        self._watched: frozenset[tuple[Path, int]] = frozenset()
        """Watched folders with their inodes, because a new folder may replace an old one."""
        if hasattr(self._library, "inotify_init1"):
            file = self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if file >= 0:
                self._inotify = file
                weakref.finalize(self, os.close, file)

    @property
    def has_inotify(self) -> bool:
        """Whether inotify reports changes; if not, each wait is a short pause."""
        return self._inotify is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until there may have been a change since the start of the last call, at most this
        long.

        A call that starts to watch a folder returns at once, because earlier changes are unknown.
        """
        try:
            folders = self._folders()
            if not self.has_inotify or not folders:
                time.sleep(min(timeout_s, _POLL_S))
            elif self._watched != (watched := frozenset(map(_identified, folders))):
                self._watch(folders)
                self._watched = watched
            else:
                self._wait(folders, timeout_s)
        except FileNotFoundError:
            return  # a shard was deleted meanwhile: that is a change

    def _wait(self, folders: list[Path], timeout_s: float) -> None:
        before = _mtimes(folders)
        is_told = self._has_notice(timeout_s)
        # A notice may have come since.
        if not is_told and _mtimes(folders) != before and not self._has_notice(0):
            self._inotify = None  # perhaps another machine changed a network file system

    def _folders(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as shards:
            newest = max(filter(is_shard, (shard.name for shard in shards)), default=None)
        return [self._folder] if newest is None else [self._folder, self._folder / newest]

    def _watch(self, folders: list[Path]) -> None:
        for folder in folders:
            watch = self._library.inotify_add_watch(self._inotify, os.fsencode(folder), _CHANGES)
            if watch < 0:
                self._inotify = None  # the system's limit on watches is reached, for example
                return

    def _has_notice(self, timeout_s: float) -> bool:
        """Wait for notifications, and take all of them."""
        assert self._inotify is not None
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        if not poll.poll(1000 * timeout_s):
            return False
        os.read(self._inotify, 1 << 16)
        return True


def _identified(folder: Path) -> tuple[Path, int]:
    return folder, folder.stat().st_ino


def _mtimes(folders: list[Path]) -> list[int]:
    return [folder.stat().st_mtime_ns for folder in folders]
