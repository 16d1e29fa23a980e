"""A folder on a disk of this machine, or on a network file system.

A name is created by a hard link, which fails if the name exists. So only one writer can create it,
and readers never see a partly written file. deltalake creates the versions of its tables in the
same way.

The operating system writes files to the disk within half a minute. Confirmed data must survive a
power failure before that, so :meth:`LocalFolder.create`, ``replace`` and ``settle`` call fsync for
files and their folders.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgsluice.failpoints import failpoint
from pgsluice.stores.contract import (
    Changed,
    Folder,
    LinksRefused,
    NameTaken,
    OutputStream,
    Span,
    Stored,
)

TEMPORARY_FOLDER = "_tmp"
"""The subfolder for files that do not have their final name yet. Readers of lakes skip such
folders."""
WHY_NO_LINKS = (
    "its file system refuses hard links, which pgsluice needs to create each version of a Delta "
    "table"
)
_REFUSALS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without hard links."""


@dataclass(frozen=True, slots=True)
class LocalFolder(Folder):
    """A folder on a disk, by its absolute path; it need not exist yet."""

    root: Path

    @property
    def uri(self) -> str:
        return str(self.root)

    @property
    def path(self) -> Path:
        return self.root

    def create(self, name: str, data: bytes) -> Hashable:
        path = self.root / name
        made = _make_folders(path.parent)
        written = self._written(data)
        try:
            path.hardlink_to(written)
        except FileExistsError:
            if not path.samefile(written):  # NFS repeats a call whose answer was lost
                raise NameTaken(f"another writer has created {path}") from None
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            raise LinksRefused(
                f"pgsluice cannot write to the folder {self.root} safely: {WHY_NO_LINKS}",
                hint="choose a folder on another file system",
            ) from error
        finally:
            written.unlink(missing_ok=True)
        _sync(path.parent, *made)
        return _tag(path.stat())

    def replace(self, name: str, data: bytes, tag: Hashable | None) -> Hashable:
        path = self.root / name
        if tag is None:
            try:
                return self.create(name, data)
            except NameTaken:
                raise Changed(f"another writer has created {path}") from None
        written = self._written(data)
        try:
            found = self.stat(name)
            if found is None or found.tag != tag:
                raise Changed(f"another writer has replaced {path}")
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)
        _sync(path.parent)
        return _tag(path.stat())

    def write(self, name: str) -> OutputStream:
        path = self.root / name
        _sync(*_make_folders(path.parent))
        stream: OutputStream = pa.OSFile(str(path), "wb")
        return stream

    def settle(self, names: Iterable[str] = ()) -> None:
        files = {self.root / name for name in names}
        _sync(*files, *(file.parent for file in files))

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def open(self, name: str, size: int | None = None) -> Any:
        return pa.OSFile(str(self.root / name), "rb")

    def read_spans(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        parts = []
        with (self.root / name).open("rb") as file:
            for start, length in spans:
                file.seek(start)
                parts.append(file.read(length))
        return parts

    def entries(self, under: str = "", after: str = "") -> list[Stored]:
        try:
            names = os.listdir(self.root / under)  # noqa: PTH208 - fast for thousands of names
        except FileNotFoundError:
            return []
        last = after.removeprefix(under)
        later = sorted(name for name in names if name > last)
        return [found for name in later if (found := self.stat(f"{under}{name}")) is not None]

    def tree(self, under: str = "", after: str = "") -> list[Stored]:
        names = sorted(
            f"{Path(folder, file).relative_to(self.root)}"
            for folder, _, files in os.walk(self.root / under)
            for file in files
        )
        later = (name for name in names if name > after)
        return [found for name in later if (found := self.stat(name)) is not None]

    def stat(self, name: str) -> Stored | None:
        try:
            status = (self.root / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return Stored(name, status.st_size, status.st_mtime, _tag(status))

    def delete(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def _written(self, data: bytes) -> Path:
        """A new durable file with this content, which does not have its final name yet."""
        folder = self.root / TEMPORARY_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4()}.tmp"
        try:
            path.write_bytes(data)
            _sync(path)
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        return path


def refuses_links(folder: Path) -> bool:
    """Whether the file system of a folder, which need not exist yet, is known to refuse hard
    links."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        made = Path(tempfile.mkdtemp(dir=existing, prefix=".pgsluice-"))
    except OSError:
        return False  # nothing can be written there, which is another check
    try:
        (made / "first").touch()
        (made / "second").hardlink_to(made / "first")
    except OSError as error:
        return error.errno in _REFUSALS
    finally:
        shutil.rmtree(made)
    return False


def _make_folders(path: Path) -> list[Path]:
    """Create a folder and its parents; returns the folders to sync."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
    return [*missing[1:], path] if missing else []


def _sync(*paths: Path) -> None:
    """Sync files and folders; ignore missing ones, those above the lake that are closed to this
    user, and file systems that cannot sync folders."""
    for path in sorted({*paths}):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            continue
        try:
            failpoint("store.sync")
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)


def _tag(status: os.stat_result) -> Hashable:
    return status.st_ino, status.st_size, status.st_mtime_ns
