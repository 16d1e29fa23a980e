"""Files on a disk of this machine that are mapped into memory, and that may be lost at any time.

The length of the content and a checksum follow the content. The checksum begins with the file's
subject, which says what the content is made of: a file of something else is as useless as a damaged
one.

A batch may read those of a whole large table, so the mapped memory that stays resident is limited.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import pyarrow as pa

from pgsluice.disk import naming
from pgsluice.small_files import replacing

RESIDENT_BYTES = 128 * 2**20
"""The maximum size of mapped files in memory, besides the one that is read."""
_OPEN_AT_ONCE = 4096
"""The maximum number of files that a process has mapped."""
_TRAILER = struct.Struct(">QI")
"""The length of the content in bytes, and the checksum."""
_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BLOCK_BYTES = 2**20


class MappedFile:
    """A cached file that is mapped into memory; its content holds no file descriptor."""

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content

    @property
    def size(self) -> int:
        """Size of the mapped content in bytes."""
        return int(self._content.size)

    def leave_memory(self) -> None:
        """Take its pages out of this process's memory, where the system can; the next reader gets
        those that it reads from the system's cache, or from the disk."""
        advise = _madvise()
        if advise is not None:
            address, size = ctypes.c_void_p(self._content.address), ctypes.c_size_t(self.size)
            advise(address, size, mmap.MADV_DONTNEED)


@cache
def _madvise() -> Callable[[ctypes.c_void_p, ctypes.c_size_t, int], int] | None:
    return getattr(ctypes.CDLL(None), "madvise", None)


Mapped = TypeVar("Mapped", bound=MappedFile)


class OpenFiles(Generic[Mapped]):
    """The files of one kind, which ``mapped`` makes of their content, that this process has mapped;
    its threads share them."""

    def __init__(self, mapped: Callable[[pa.Buffer], Mapped]) -> None:
        self._mapped = mapped
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, Mapped] = OrderedDict()
        self._resident: OrderedDict[Path, int] = OrderedDict()
        self._resident_bytes = 0  # their sum: a search through thousands of files asks for each

    def has(self, path: Path) -> bool:
        """Whether the file at this path is mapped now."""
        return path in self._by_path

    def get(self, path: Path, subject: str) -> Mapped | None:
        """A file, which is read next; None: it is missing, damaged, or of something else."""
        with self._lock:
            file = self._by_path.get(path)
        if file is None:
            if (content := _read(path, subject)) is None:
                return None
            file = self._mapped(content)
        with self._lock:
            self._by_path[path] = file
            self._by_path.move_to_end(path)
            self._resident_bytes += file.size - self._resident.pop(path, 0)
            self._resident[path] = file.size
            while len(self._by_path) > _OPEN_AT_ONCE:
                self._forget(next(iter(self._by_path)))
            while len(self._resident) > 1 and self._resident_bytes > RESIDENT_BYTES:
                left, size = self._resident.popitem(last=False)
                self._resident_bytes -= size
                self._by_path[left].leave_memory()
        return file

    def drop(self, path: Path) -> None:
        """Forget the mapping of this file, if there is one; the file stays."""
        with self._lock:
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._by_path.pop(path, None)
        self._resident_bytes -= self._resident.pop(path, 0)


@contextmanager
def writing(path: Path, subject: str, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a file's content by a temporary name; at the end it replaces the file, whose folder
    need not exist.

    Args:
        subject: what the content is made of.
        mode: permissions, before the process's mask.
    """
    with _placed(path, mode) as file:
        yield file
        size = file.tell()
        file.write(_TRAILER.pack(size, _checksum(file, size, subject)))


def place(path: Path, subject: str, whole: bytes) -> bool:
    """Write a file that was made elsewhere; False: it is damaged, or of something else."""
    if not _is_whole(io.BytesIO(whole), len(whole), subject):
        return False
    with _placed(path, 0o666) as file:
        file.write(whole)
    return True


@contextmanager
def _placed(path: Path, mode: int) -> Iterator[BinaryIO]:
    with naming(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode) as file:
            yield file


def _read(path: Path, subject: str) -> pa.Buffer | None:
    """Map a file's content; None: it is missing, damaged, or of something else.

    Raises:
        OSError: the process may open no more files, or has no memory.
    """
    try:
        with path.open("rb") as file:
            if not _is_whole(file, path.stat().st_size, subject):
                return None
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()[: -_TRAILER.size]
    except OSError as error:
        if error.errno in _NOT_OF_THE_FILE:
            raise
        return None


def _is_whole(file: BinaryIO, size: int, subject: str) -> bool:
    """Whether a file of this size has a whole content of the subject."""
    content = size - _TRAILER.size
    if content < 0:
        return False
    checksum = _checksum(file, content, subject)
    return file.read(_TRAILER.size) == _TRAILER.pack(content, checksum)


def _checksum(file: BinaryIO, size: int, subject: str) -> int:
    """Of the subject and the first ``size`` bytes; the file's position is behind them."""
    checksum = zlib.crc32(subject.encode())
    file.seek(0)
    while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
        checksum = zlib.crc32(block, checksum)
        size -= len(block)
    return checksum
