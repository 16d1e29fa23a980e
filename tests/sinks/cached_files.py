"""The files that a sink keeps in its ``cache_dir``: which there are, and a disk without room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from pgsluice.small_files import replacing


def key_files(folder: Path) -> dict[Path, int]:
    """Each key file below a folder, with its inode: a new file at the same path has another one."""
    return {path: path.stat().st_ino for path in folder.rglob("*.keys")}


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the disk of these files is full."""

    @contextmanager
    def full(path: Path, mode: int) -> Iterator[BinaryIO]:
        with replacing(path, mode) as file:
            yield file
            raise OSError(28, os.strerror(28))

    monkeypatch.setattr("pgsluice.sinks.lake.mapped_files.replacing", full)
