"""Folders on disks that the executors of a cluster have to share with the driver.

A task that writes into a folder of its own machine succeeds there, and the driver would commit
files that nobody else has. So each job of a run on a cluster first looks for a mark of the driver
in each of these folders.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgsluice.errors import ConfigError

_MARK = ".pgsluice-shared"


@dataclass(frozen=True, slots=True)
class Unseen:
    """An executor does not see a folder; picklable."""

    host: str
    folder: str

    def refuse(self) -> None:
        """Raise the error.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"the executor on {self.host} does not see the driver's folder {self.folder}",
            hint="mount this folder at the same path on every executor, or use an object store "
            "(docs/clusters.md). `pgsluice check CONFIG` tests every executor",
        )


class _Marks:
    """The marks of the run in this process."""

    paths: tuple[str, ...] = ()


@contextmanager
def shared_folders(folders: Iterable[Path]) -> Iterator[None]:
    """A context in which jobs look for these folders first; makes them.

    Raises:
        ConfigError: the driver cannot write into one.
    """
    before, paths = _Marks.paths, []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _MARK).touch()
        except OSError as error:
            raise ConfigError(
                f"pgsluice cannot write to the folder {folder}: {error.strerror}",
                hint="correct the folder's path in the configuration, or its owner",
            ) from error
        paths.append(str(folder / _MARK))
    _Marks.paths = tuple(paths)
    try:
        yield
    finally:
        _Marks.paths = before


def marks() -> tuple[str, ...]:
    """The marks to look for, for the tasks of a job."""
    return _Marks.paths


def unseen(paths: Iterable[str]) -> Unseen | None:
    """The first folder whose mark this machine does not have."""
    for path in paths:
        if not Path(path).exists():
            return Unseen(socket.gethostname(), str(Path(path).parent))
    return None
