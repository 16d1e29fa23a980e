"""Waiting for changes of folders, on a real file system."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pgsluice.spool import notices
from pgsluice.spool.notices import FolderNotices

LONG_S = 20.0


def watching(folder: Path) -> FolderNotices:
    """Notices of a folder with two shards, from now on."""
    for shard in ("2026112209", "2026112210"):
        (folder / shard).mkdir(parents=True)
    waiting = FolderNotices(folder)
    waiting.wait(LONG_S)  # returns at once: it begins to watch
    return waiting


def ends_by(waiting: FolderNotices, change: object) -> None:
    """A wait ends when the change is made in another thread, long before its time is over."""
    assert callable(change)
    changing = threading.Timer(0.02, change)
    changing.start()
    waiting.wait(LONG_S)
    changing.join()


def test_a_file_in_the_newest_shard_ends_the_wait(tmp_path: Path) -> None:
    waiting = watching(tmp_path)
    written = tmp_path / "2026112210" / "file.tmp"
    ends_by(waiting, written.touch)
    ends_by(waiting, lambda: written.rename(written.with_suffix("")))
    ends_by(waiting, written.with_suffix("").unlink)
    assert waiting.has_inotify


def test_a_change_between_two_waits_ends_the_second(tmp_path: Path) -> None:
    waiting = watching(tmp_path)
    (tmp_path / "2026112210" / "file").touch()
    waiting.wait(LONG_S)
    assert waiting.has_inotify


def test_a_new_shard_is_watched(tmp_path: Path) -> None:
    waiting = watching(tmp_path)
    shard = tmp_path / "2026112211"
    ends_by(waiting, shard.mkdir)
    waiting.wait(LONG_S)  # it begins to watch the shard
    ends_by(waiting, (shard / "file").touch)
    ends_by(waiting, lambda: ((shard / "file").unlink(), shard.rmdir()))
    assert waiting.has_inotify


def test_a_folder_that_comes_later_is_watched(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    waiting = FolderNotices(folder)
    waiting.wait(LONG_S)  # a pause: there is nothing to watch
    folder.mkdir()
    waiting.wait(LONG_S)
    ends_by(waiting, (folder / "2026112210").mkdir)
    assert waiting.has_inotify


def test_changes_without_notice_are_found_out(tmp_path: Path) -> None:
    """As on a network file system: the folder's time changes, and no notice comes of it."""
    waiting = watching(tmp_path)
    while waiting.has_inotify:
        changing = threading.Timer(0.02, os.utime, [tmp_path / "2026112210"])
        changing.start()
        waiting.wait(0.2)
        changing.join()
    waiting.wait(LONG_S)  # a pause from now on


def test_without_inotify_a_wait_is_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices.ctypes, "CDLL", lambda _: object())
    waiting = FolderNotices(tmp_path)
    assert not waiting.has_inotify
    waiting.wait(LONG_S)
