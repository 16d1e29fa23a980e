"""The Arrow files of one spool, with checks when they are read.

A file is refused if it is damaged, belongs to another spool, or has the name of another file. A
process checks the checksums of a file once, because these files never change.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from pgsluice.errors import SpoolError
from pgsluice.spool.formats import RESTORE_OBJECT
from pgsluice.spool.layout import new_object
from pgsluice.spool.segments.header import (
    Header,
    PartHeader,
    PreparedHeader,
    ReferenceHeader,
    SegmentHeader,
    name_of,
)
from pgsluice.spool.segments.scan import RawMessages
from pgsluice.spool.segments.segment import read_header, read_segment, write_segment
from pgsluice.spool.spool import Spool
from pgsluice.spool.storage import Storage

H = TypeVar("H", SegmentHeader, PartHeader, ReferenceHeader, PreparedHeader)
_REMEMBERED = 10_000
CHECKED: dict[Hashable, None] = {}
"""The files whose checksums this process has checked, the oldest first."""


class Objects:
    """The Arrow files of one spool: segments, parts, references and prepared files."""

    def __init__(self, spool: Spool) -> None:
        self.storage: Storage = spool.storage
        self._spool_id = spool.identity.spool_id

    def put(self, header: Header, messages: RawMessages | None = None) -> tuple[str, int]:
        """Store a new file durably.

        Returns:
            its name with its folders, and its size in bytes.

        Raises:
            SpoolFull, SpoolError: it could not be written.
        """
        base = name_of(header)
        name = new_object(base, self.storage.shard(base.folder))
        return name, self.storage.put(name, lambda file: write_segment(file, header, messages))

    def header(self, name: str, kind: type[H]) -> H:
        """Read a file's header.

        Raises:
            OSError: the file cannot be opened.
            SpoolError: it is damaged, of another kind or spool, or has another file's name.
        """
        with self.storage.open(name, is_header=True) as file:
            return self._expect(read_header(file, name), kind, name)

    def read(self, name: str, kind: type[H]) -> tuple[H, RawMessages]:
        """Read a file; the messages are views of the memory-mapped file.

        Raises:
            OSError: the file cannot be opened.
            SpoolError: it is damaged, of another kind or spool, or has another file's name.
        """
        version = self.storage.version(name)
        with self.storage.open(name) as file:
            header, messages = read_segment(file, name, is_checked=version in CHECKED)
        own = self._expect(header, kind, name)
        CHECKED[version] = None
        if len(CHECKED) > _REMEMBERED:
            CHECKED.pop(next(iter(CHECKED)), None)
        return own, messages

    def _expect(self, header: Header, kind: type[H], name: str) -> H:
        header = expect_kind(header, kind, name)
        if header.origin.spool_id != self._spool_id:
            raise SpoolError(
                f"the file {name} belongs to the spool with id {header.origin.spool_id}, not to "
                f"this spool with id {self._spool_id}",
                hint=RESTORE_OBJECT,
                path=name,
            )
        own_name = name_of(header)
        named = type(own_name).parse(name.rpartition("/")[2])
        if own_name != named:
            raise SpoolError(
                f"the file {name} has the content of another file of this spool, {own_name}",
                hint=RESTORE_OBJECT,
                path=name,
            )
        return header


def expect_kind(header: Header, kind: type[H], path: str) -> H:
    """Return the header if it is of the expected kind.

    Raises:
        SpoolError: the file is of another kind.
    """
    if not isinstance(header, kind):
        raise SpoolError(
            f"the file {path} has the content of another kind of file: {type(header).__name__}",
            hint=RESTORE_OBJECT,
            path=path,
        )
    return header
