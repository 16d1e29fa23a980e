"""Stores the spool's files: one small interface, and its implementation for local file systems.

``put`` writes an object once; objects never change. ``replace`` replaces a small file as a whole.
Both are durable when they return: they write a temporary name, fsync the file, rename it and
fsync the folder. So readers never see a file that is partly written.

Objects lie in folders (*shards*) named by the UTC hour of their writing, so that a listing reads
only the shards that changed. :mod:`pgsluice.spool.object_storage` is the implementation for object
stores.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from pgsluice.disk import disk_trouble
from pgsluice.errors import SpoolError, SpoolFull
from pgsluice.failpoints import failpoint
from pgsluice.small_files import TEMPORARY

if TYPE_CHECKING:
    import pyarrow as pa

_SHARD = re.compile("[0-9]{10}")
_SETTLED_NS = 100_000_000
"""A folder that changed less than this time ago, in seconds, may change again without a new
mtime."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored object: its name with folders, its size, and its time of writing in seconds since
    1970."""

    name: str
    size_bytes: int
    written_at: float

    @property
    def base(self) -> str:
        """The name without folders, by which objects of one kind are sorted."""
        return self.name.rpartition("/")[2]


class Storage(Protocol):
    """The operations that the spool needs to store files. Names are relative paths with ``/``.

    Some do nothing on a disk: one process writes there, under a lock, and each listing is current.
    """

    def put(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Store a new object durably and return its size; SpoolError if the name exists."""

    def replace(self, name: str, data: bytes) -> None:
        """Store a small object durably; it replaces an object of the same name. In a store, raises
        SpoolTaken if another process has replaced it since this one wrote it, or called
        :meth:`expect`."""

    def expect(self, name: str) -> None:
        """Let the next :meth:`replace` fail if another process replaces the object before it."""
        return

    def read(self, name: str) -> bytes | None:
        """A small object's bytes; None if there is no such object."""

    def open(self, name: str, *, is_header: bool = False) -> pa.NativeFile:
        """Open an object for random access, memory-mapped if possible. ``is_header``: only a few
        bytes at its end will be read."""

    def will_open(self, names: Sequence[str]) -> None:
        """Note that these objects will probably be opened, in this order; a store fetches them
        ahead."""
        return

    def version(self, name: str) -> Hashable:
        """A value that differs between all files that an object's name has had."""

    def entries(self, folder: str) -> Sequence[Entry]:
        """The objects in the subfolders of ``folder``, sorted by subfolder and name. If nothing has
        changed, it is usually the same object as before. In a store, it may be some seconds old
        (:meth:`refresh`)."""

    def refresh(self) -> None:
        """Let the next :meth:`entries` be as new as this call."""
        return

    def delete(self, *names: str) -> None:
        """Delete objects, by their names; missing ones are ignored."""

    def shard(self, folder: str) -> str:
        """The subfolder for an object that is written now."""

    def own(self, small: Collection[str]) -> None:
        """Make this process the only writer, which need not list or read again what it wrote. If
        another process replaces one of these ``small`` objects after this call, this process's next
        :meth:`replace` of it fails."""
        return

    def remove_temporaries(self, folder: str) -> None:
        """Delete what a killed writer has left unfinished below ``folder``."""
        return


def shard_now() -> str:
    """The subfolder of objects that are written now: the UTC hour."""
    return time.strftime("%Y%m%d%H", time.gmtime())


def is_shard(name: str) -> bool:
    """Whether a subfolder of this name can have objects; others do not belong to the spool."""
    return _SHARD.fullmatch(name) is not None


class LocalStorage(Storage):
    """The spool's files below one folder of a disk; folders are 0700 and files 0600."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shards: dict[str, tuple[int, bool, list[Entry]]] = {}
        self._folders: dict[str, tuple[list[list[Entry]], list[Entry]]] = {}

    def put(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        path = self.root / name
        make_folder(path.parent)
        if path.exists():
            raise SpoolError(
                f"the spool cannot write {path}: a file with this name exists",
                hint="another process may write to this spool: stop it, then start `pgsluice run "
                "CONFIG` or `pgsluice capture CONFIG` again",
                path=str(path),
            )
        return _write_durably(path, fill)

    def replace(self, name: str, data: bytes) -> None:
        path = self.root / name
        make_folder(path.parent)
        _write_durably(path, lambda file: file.write(data))

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise spool_error(error, self.root / name) from error

    def open(self, name: str, *, is_header: bool = False) -> pa.NativeFile:
        import pyarrow as pa

        return pa.memory_map(str(self.root / name), "rb")

    def version(self, name: str) -> Hashable:
        status = (self.root / name).stat()
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def entries(self, folder: str) -> Sequence[Entry]:
        try:
            with os.scandir(f"{self.root}/{folder}") as found:
                shards = sorted(one.name for one in found if is_shard(one.name) and one.is_dir())
        except FileNotFoundError:
            return []
        listed = [self._list_shard(f"{folder}/{shard}") for shard in shards]
        known = self._folders.get(folder)
        if known is not None and len(known[0]) == len(listed) and all(map(is_, known[0], listed)):
            return known[1]
        entries = [entry for shard in listed for entry in shard]
        self._folders[folder] = listed, entries
        return entries

    def _list_shard(self, shard: str) -> list[Entry]:
        """The objects of one subfolder, listed again after a change, and right after one: mtimes
        are coarse."""
        path = self.root / shard
        try:
            mtime_ns = path.stat().st_mtime_ns
            known = self._shards.get(shard)
            if known is not None and known[1] and known[0] == mtime_ns:
                return known[2]
            settled = time.time_ns() - mtime_ns > _SETTLED_NS
            seen = {} if known is None else {entry.base: entry for entry in known[2]}
            with os.scandir(path) as files:  # objects never change: a known one needs no stat
                entries = sorted(
                    (
                        seen.get(file.name) or _entry(shard, file)
                        for file in files
                        if not file.name.endswith(TEMPORARY)
                    ),
                    key=lambda entry: entry.name,
                )
        except FileNotFoundError:  # retention deleted the folder between two of these calls
            self._shards.pop(shard, None)
            if path.is_dir():
                return self._list_shard(shard)
            return []
        if known is not None and entries == known[2]:
            entries = known[2]
        self._shards[shard] = (mtime_ns, settled, entries)
        return entries

    def shard(self, folder: str) -> str:
        return shard_now()

    def delete(self, *names: str) -> None:
        for path in (self.root / name for name in names):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise spool_error(error, path) from error
            if path.parent.name < shard_now():
                with suppress(OSError):  # not empty yet
                    path.parent.rmdir()

    def remove_temporaries(self, folder: str) -> None:
        for path in (self.root / folder).glob(f"*/*{TEMPORARY}"):
            path.unlink(missing_ok=True)


def _entry(shard: str, file: os.DirEntry[str]) -> Entry:
    status = file.stat()
    return Entry(f"{shard}/{file.name}", status.st_size, status.st_mtime)


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably, with mode 0700; raises SpoolError if that fails."""
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
    """The error of the spool for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpoolFull(
            f"the disk has no room left for the file {path}",
            hint="free disk space, or give the spool a larger disk. No data is lost: the server "
            "keeps the changes that pgsluice has not acknowledged",
            path=str(path),
        )
    trouble = disk_trouble(error, str(path))
    if trouble is not None:
        return SpoolError(trouble.what, hint=trouble.hint, path=str(path))
    return SpoolError(
        f"the spool cannot use the file {path}: {error.strerror or error}",
        hint="check this folder and its file system, then start again: the server keeps what "
        "pgsluice has not acknowledged",
        path=str(path),
    )


def _write_durably(path: Path, fill: Callable[[BinaryIO], object]) -> int:
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            failpoint("spool.write")
            fill(file)
            size = file.tell()
            file.flush()
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


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
