"""What pgsluice needs of a folder of files: on a disk, or below a prefix of an object store.

Names are relative paths with ``/``. Two kinds of files share a folder:

- *Named files*, whose name is the statement: the commit of a version, the newest record. One writer
  creates such a name (:meth:`Folder.create`), or replaces exactly the content that it has read
  (:meth:`Folder.replace`).
- *Unique files*, whose name has a UUID. Nobody else writes that name, and its content never
  changes (:meth:`Folder.write`); a copy of it may be kept.

Every method raises :class:`StoreError` if the store does not do what it is asked for; an error that
may pass is retried before. A folder on a disk raises ``OSError`` instead. A file that is not there
is ``FileNotFoundError`` in both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from pgsluice.errors import PgsluiceError, TargetUnreachable


class StoreError(TargetUnreachable):
    """An object store does not answer, or refuses; ``hint`` says what ends it."""


class LinksRefused(StoreError):
    """A disk's file system has no hard links, so no name can be created safely."""


class NameTaken(PgsluiceError):
    """Another writer has created the name first."""


class Changed(PgsluiceError):
    """Another writer has replaced the file since it was read."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file that lies in a folder.

    Attributes:
        name: its path inside of the folder.
        size: in bytes.
        written_at: in seconds since 1970.
        tag: differs for each content that the name has had.
    """

    name: str
    size: int
    written_at: float
    tag: Hashable


class Span(NamedTuple):
    """A part of a file, in bytes."""

    start: int
    length: int


class OutputStream(Protocol):
    """A unique file while it is written. Nobody sees it before it is closed; if the block raises,
    nobody ever does, or :meth:`Folder.delete` takes it away."""

    def write(self, data: Any, /) -> int: ...

    def tell(self) -> int: ...

    def __enter__(self) -> OutputStream: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


class Folder(ABC):
    """A folder. It pickles, and holds no connection itself.

    Two folders are equal if they are the same place.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """Where it lies, as a user would write it, and as deltalake takes it."""

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The folder on this machine's disk; None for one in an object store."""

    def storage_options(self) -> dict[str, str]:
        """How deltalake reaches an object store; it has secrets."""
        return {}

    @abstractmethod
    def create(self, name: str, data: bytes) -> Hashable:
        """Create a named file, durably when this returns.

        Its content has to differ from that of other writers, as by a UUID: after a lost answer
        this is how a writer knows its own file.

        Returns:
            its tag.

        Raises:
            NameTaken: another writer has created it. After any other error the file may be there,
                or be there later.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, tag: Hashable | None) -> Hashable:
        """Replace a small named file as a whole, durably when this returns.

        Args:
            tag: of the content to replace; None: there is no such file.

        Returns:
            the new tag.

        Raises:
            Changed: it has another content by now.
        """

    @abstractmethod
    def write(self, name: str) -> OutputStream:
        """Begin a unique file. It is durable after :meth:`settle`."""

    @abstractmethod
    def settle(self, names: Iterable[str] = ()) -> None:
        """Wait until files are durable: these, whoever has written them, and all that this thread
        has written here. Those that are not there any more are left out.

        In an object store only this process's own files can be waited for. So a task that hands
        names on to another process settles them before.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file, as it is now."""

    @abstractmethod
    def open(self, name: str, size: int | None = None) -> Any:
        """Open a unique file for random access, as Arrow and Parquet do it. It has to be closed.

        Args:
            size: in bytes, if it is known.
        """

    @abstractmethod
    def read_spans(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        """Parts of a unique file; a part that ends behind the file's end is shorter."""

    @abstractmethod
    def entries(self, under: str = "", after: str = "") -> list[Stored]:
        """The files directly in a folder, sorted by name; none, if there is no such folder.

        Args:
            under: the folder inside of this one, with ``/`` at its end.
            after: only files whose whole name is greater; it begins with ``under``.
        """

    @abstractmethod
    def stat(self, name: str) -> Stored | None:
        """A file as it is now; None: there is none."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Delete files; those that are not there are left out."""
