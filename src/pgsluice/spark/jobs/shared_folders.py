"""Folders on disks that the executors of a cluster have to share with the driver.

A task that writes into a folder of its own machine succeeds there, and the driver would commit
files that nobody else has. So each job of a run on a cluster first looks for a mark in each of
these folders. The mark is a file with a random id, which the first run writes and which stays: a
machine that has been a driver may have a mark of its own at the same path.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgsluice.errors import ConfigError
from pgsluice.small_files import replacing

_MARK = ".pgsluice-shared"


@dataclass(frozen=True, slots=True)
class Mark:
    """The file that tells a folder from another machine's at the same path; picklable."""

    path: str
    folder_id: bytes

    @classmethod
    def of(cls, folder: Path) -> Mark:
        """A folder's mark; makes the folder and the mark.

        Raises:
            OSError: this process cannot write into the folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _MARK
        path.touch()
        if not path.read_bytes():
            with replacing(path, mode=0o644) as file:  # an executor may be of another user
                file.write(uuid.uuid4().hex.encode())
        return cls(str(path), path.read_bytes())

    def is_here(self) -> bool:
        """Whether this machine sees the folder, and not another one at the same path."""
        try:
            return Path(self.path).read_bytes() == self.folder_id
        except OSError:
            return False


class _Marks:
    """The marks of the run in this process."""

    of_run: tuple[Mark, ...] = ()


@contextmanager
def shared_folders(folders: Iterable[Path]) -> Iterator[None]:
    """A context in which jobs look for these folders first; makes them.

    Raises:
        ConfigError: the driver cannot write into one.
    """
    before, found = _Marks.of_run, []
    for folder in folders:
        try:
            found.append(Mark.of(folder))
        except OSError as error:
            raise ConfigError(
                f"pgsluice cannot write to the folder {folder}: {error.strerror}",
                hint="correct the folder's path in the configuration, or its owner",
            ) from error
    _Marks.of_run = tuple(found)
    try:
        yield
    finally:
        _Marks.of_run = before


def marks() -> tuple[Mark, ...]:
    """The marks of the folders that the tasks of a job have to see; empty without a cluster."""
    return _Marks.of_run


def why_unseen(wanted: Iterable[Mark]) -> ConfigError | None:
    """The error that this executor does not see a driver's folder; None: it sees all of them."""
    for mark in wanted:
        if not mark.is_here():
            host, folder = socket.gethostname(), Path(mark.path).parent
            return ConfigError(
                f"the executor on {host} does not see the driver's folder {folder}",
                hint="mount this folder at the same path on every executor, or use an object store "
                "(docs/clusters.md). `pgsluice check CONFIG` tests every executor",
            )
    return None
