"""The contract of a folder of files: on a disk, or below a prefix of an object store.

Names are relative paths with ``/``. Two kinds of files share a folder:

- *Named files* have a fixed name, such as the commit of a version, or the newest record. Only one
  writer can create such a name (:meth:`Folder.create`), or replace the content that it has read
  (:meth:`Folder.replace`).
- *Unique files* have a UUID in their name. No other writer uses that name, and the content never
  changes (:meth:`Folder.write`), so it can be cached.

Every method raises :class:`StoreError` if the store fails; temporary errors are retried first. A
folder on a disk raises ``OSError`` instead. Both raise ``FileNotFoundError`` for a missing file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pgsluice.errors import PgsluiceError, TargetUnreachable

One = TypeVar("One")
Answer = TypeVar("Answer")


class StoreError(TargetUnreachable):
    """An object store does not answer, or refuses; ``hint`` says how to solve it."""


class LinksRefused(StoreError):
    """A disk's file system has no hard links, so no name can be created safely."""


class NameTaken(PgsluiceError):
    """Another writer has created the name first."""


class Changed(PgsluiceError):
    """Another writer has replaced the file since it was read."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file in a folder.

    Attributes:
        name: its path inside the folder.
        size: its size in bytes.
        written_at: when it was written, in seconds since 1970.
        tag: a value that differs between all contents that the name has had.
    """

    name: str
    size: int
    written_at: float
    tag: Hashable


class Span(NamedTuple):
    """A part of a file, in bytes."""

    start: int
    length: int


class OutputStream(AbstractContextManager["OutputStream"], Protocol):
    """A unique file while it is written. It is invisible until it is closed; if the block raises,
    it never becomes visible, or :meth:`Folder.delete` deletes it."""

    def write(self, data: Any, /) -> int: ...

    def tell(self) -> int: ...


class Folder(ABC):
    """A folder. Picklable; it holds no connection itself.

    Two folders are equal if their locations are the same.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The folder's location, in the form of users and of deltalake."""

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The folder's path on this machine's disk; None in an object store."""

    def storage_options(self) -> dict[str, str]:
        """deltalake's options for an object store, including secrets."""
        return {}

    @abstractmethod
    def create(self, name: str, data: bytes) -> Hashable:
        """Create a named file, and return its tag; it is durable when this returns.

        Its content has to differ from that of other writers, for example by a UUID: if the answer
        is lost, the writer recognises its own file by the content. Raises NameTaken if another
        writer has created it. After any other error the file may exist, now or later.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, tag: Hashable | None) -> Hashable:
        """Replace a small named file as a whole, and return its new tag; it is durable when this
        returns. ``tag``: that of the content to replace; None: the file must not exist. Raises
        Changed if it has other content by now."""

    @abstractmethod
    def write(self, name: str) -> OutputStream:
        """Start a unique file. It is durable after :meth:`settle`."""

    @abstractmethod
    def settle(self, names: Iterable[str] = ()) -> None:
        """Wait until files are durable: these files, whoever wrote them, and all files that this
        thread has written to the folder. Missing files are ignored.

        In an object store, it can only wait for files of this process. So a task calls it before it
        passes names to another process.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The current content of a file, as bytes."""

    @abstractmethod
    def open(self, name: str, size: int | None = None) -> Any:
        """Open a unique file for random access by Arrow and Parquet; the caller has to close it.
        ``size``: its size in bytes, if known."""

    @abstractmethod
    def read_spans(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        """Parts of a unique file; a part past the file's end is shorter."""

    @abstractmethod
    def entries(self, under: str = "", after: str = "") -> list[Stored]:
        """The files directly in a folder, sorted by name; none if the folder does not exist.

        Args:
            under: the folder inside this one, ending with ``/``.
            after: only files whose whole name is greater; it starts with ``under``.
        """

    @abstractmethod
    def tree(self, under: str = "", after: str = "") -> list[Stored]:
        """The files in a folder and in all folders below it, as :meth:`entries`."""

    @abstractmethod
    def stat(self, name: str) -> Stored | None:
        """The current size, time and tag of a file; None if it does not exist."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Delete files; missing files are ignored."""


def at_once(
    folder: Folder, ask: Callable[[One], Answer], things: Iterable[One], most: int = 8
) -> Iterator[Answer]:
    """What ``ask`` returns for each thing, in their order, by up to ``most`` requests at a time:
    one after the other, each would wait for its answer. On a disk, one thing comes after the
    other."""
    things = [*things]
    if folder.path is not None or len(things) < 2:
        yield from map(ask, things)
        return
    with ThreadPoolExecutor(min(most, len(things))) as threads:
        yield from threads.map(ask, things)
