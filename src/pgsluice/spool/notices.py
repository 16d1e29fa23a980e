"""Waits until something changes in the folders of a kind of the spool's files.

On Linux the kernel gives notice of a change (inotify): a process that waits uses no CPU, and wakes
at once. Elsewhere, and on file systems that give no notice, the wait is a short pause, and the
caller looks again.

Its figures: idle below 3 % of a core, and commit to visible.
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
"""The pause where there is no notice."""
_MOVED_FROM, _MOVED_TO, _CREATED, _DELETED = 0x40, 0x80, 0x100, 0x200
_CHANGES = _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED
"""All that changes a folder's mtime, so that missing notices are noticed."""


class FolderNotices:
    """Waits for changes of a folder and of its newest shard; one thread uses it.

    Args:
        folder: it need not exist yet; the names of its shards sort by age.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = ctypes.CDLL(None)
        self._inotify: int | None = None
        """None: changes give no notice, as far as is known."""
        self._watched: frozenset[tuple[Path, int]] = frozenset()
        """Folders with their inodes, since another folder may take the place of one."""
        if hasattr(self._library, "inotify_init1"):
            file = self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if file >= 0:
                self._inotify = file
                weakref.finalize(self, os.close, file)

    def wait(self, timeout_s: float) -> None:
        """Wait until there may have been a change since the last call began, for so long at most.

        A call that begins to watch a folder returns at once: nothing is known of earlier changes.
        """
        try:
            folders = self._folders()
            if self._inotify is None or not folders:
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
            self._inotify = None  # of a network's file system another machine changed, perhaps

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
        """Wait for notices, and take all that came."""
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
