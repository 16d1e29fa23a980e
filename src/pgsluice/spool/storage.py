"""Where the spool's files lie: one small interface, and the local file system.

An object is written once, whole, and never changed (``put``); small state is replaced whole
(``replace``). Both are durable when they return: a temporary name, fsync of the file, rename,
fsync of the folder. Nothing half-written ever has a name that a reader looks at.

Objects lie in folders sharded by the UTC hour of their writing, so that listing what is new
never means listing everything. Object stores are a later round: they have put-if-absent and
list-from-an-offset, which is all that is asked for here.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

import pyarrow as pa

from pgsluice.errors import SpoolError, SpoolFull
from pgsluice.failpoints import failpoint

TEMPORARY = ".tmp"
"""The suffix of a file that is being written."""
_SETTLED_NS = 100_000_000
"""A folder changed within this time may change again without a newer mtime."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored object: its name with its folders, its size, and when it was written
    (seconds since 1970)."""

    name: str
    size_bytes: int
    written_at: float

    @property
    def base(self) -> str:
        """The name without folders: what objects of one kind sort by."""
        return self.name.rpartition("/")[2]


class Storage(Protocol):
    """What the spool asks of a place to keep files. Names are relative, ``/`` between parts."""

    def put(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Store a new object durably; its size. SpoolError when the name is taken."""

    def replace(self, name: str, data: bytes) -> None:
        """Store a small object durably, in place of what had the name."""

    def read(self, name: str) -> bytes | None:
        """A small object's bytes; None when there is none."""

    def open(self, name: str) -> pa.NativeFile:
        """An object for random access, memory-mapped where that is possible."""

    def entries(self, folder: str) -> list[Entry]:
        """Objects in the shards of ``folder``, sorted by shard and name."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing when it is gone already."""


def shard_now() -> str:
    """The shard that objects are written to now: the UTC hour."""
    return time.strftime("%Y%m%d%H", time.gmtime())


class LocalStorage:
    """Files below one folder; folders are 0700 and files 0600.

    Args:
        root: the spool's folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shards: dict[str, tuple[int, bool, list[Entry]]] = {}

    def put(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        path = self.root / name
        make_folder(path.parent)
        if path.exists():
            raise SpoolError(f"{path} is already there", path=str(path))
        return _write_durably(path, fill)

    def replace(self, name: str, data: bytes) -> None:
        path = self.root / name
        make_folder(path.parent)
        _write_durably(path, lambda file: write_all(file, data))

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise spool_error(error, self.root / name) from error

    def open(self, name: str) -> pa.NativeFile:
        return pa.memory_map(str(self.root / name), "rb")

    def entries(self, folder: str) -> list[Entry]:
        try:
            shards = sorted(shard.name for shard in (self.root / folder).iterdir())
        except FileNotFoundError:
            return []
        return [entry for shard in shards for entry in self._list_shard(f"{folder}/{shard}")]

    def _list_shard(self, shard: str) -> list[Entry]:
        """One folder's objects; read again only when its mtime says that it changed.

        The clock behind mtimes ticks in milliseconds, so a listing made right after a change
        is not believed for the next one.
        """
        path = self.root / shard
        try:
            mtime_ns = path.stat().st_mtime_ns
            known = self._shards.get(shard)
            if known is not None and known[1] and known[0] == mtime_ns:
                return known[2]
            settled = time.time_ns() - mtime_ns > _SETTLED_NS
            seen = {} if known is None else {entry.base: entry for entry in known[2]}
            with os.scandir(path) as found:  # objects never change: known ones need no stat
                entries = sorted(
                    (
                        seen.get(one.name) or _entry(shard, one)
                        for one in found
                        if not one.name.endswith(TEMPORARY)
                    ),
                    key=lambda entry: entry.name,
                )
        except FileNotFoundError:  # retention was at work between two of these calls
            self._shards.pop(shard, None)
            if path.is_dir():
                return self._list_shard(shard)
            return []
        self._shards[shard] = (mtime_ns, settled, entries)
        return entries

    def delete(self, name: str) -> None:
        path = self.root / name
        try:
            path.unlink(missing_ok=True)
            if PurePosixPath(name).parent.name < shard_now():
                with suppress(OSError):  # not empty yet
                    path.parent.rmdir()
        except OSError as error:
            raise spool_error(error, path) from error

    def remove_temporaries(self, folder: str) -> None:
        """Remove what a killed writer left unfinished below ``folder``."""
        for path in (self.root / folder).glob(f"*/*{TEMPORARY}"):
            path.unlink(missing_ok=True)


def _entry(shard: str, found: os.DirEntry[str]) -> Entry:
    status = found.stat()
    return Entry(f"{shard}/{found.name}", status.st_size, status.st_mtime)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each 0700 and durable.

    Raises:
        SpoolError: the file system refuses.
    """
    if path.is_dir():
        return
    try:
        missing = [path]
        while not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)
    except OSError as error:
        raise spool_error(error, path) from error


def spool_error(error: OSError, path: Path | str) -> SpoolError:
    """The spool's error for one of the operating system's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpoolFull(
            f"no room is left on the disk for {path}",
            hint="make room or give the spool a larger disk; nothing is lost: the server keeps "
            "what was not acknowledged",
            path=str(path),
        )
    return SpoolError(f"{path}: {error.strerror or error}", path=str(path))


def _write_durably(path: Path, fill: Callable[[BinaryIO], None]) -> int:
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            failpoint("spool.write")
            fill(file)
            size = file.tell()
            failpoint("spool.before_fsync")
            os.fsync(file.fileno())
        failpoint("spool.before_rename")
        temporary.rename(path)
        failpoint("spool.after_rename")
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise spool_error(error, path) from error
    return size


def write_all(file: BinaryIO | FileIO, data: bytes) -> None:
    """Write all of ``data`` to an unbuffered file, which may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
