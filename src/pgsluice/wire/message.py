"""The base of all messages: a tag, and the conversion between bytes and an object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

from pgsluice.errors import ProtocolError
from pgsluice.wire.fields import Layout
from pgsluice.wire.reading import Reader, Writer

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 UTC, where the wire's timestamps begin, in microseconds since 1970-01-01 UTC."""


def unknown_tag(kind: str, data: bytes, known: Iterable[int]) -> ProtocolError:
    """The error for bytes whose first byte is not a known tag.

    Args:
        kind: the expected kind of bytes, as text.
        known: the tags that are possible there.
    """
    expected = f"a tag out of {''.join(chr(tag) for tag in known)!r}"
    got = f"byte {data[0]:#04x}" if data else "nothing"
    return ProtocolError(
        f"{kind}, offset 0: expected {expected}, got {got}",
        tag=chr(data[0]) if data else None,
        offset=0,
        expected=expected,
    )


class Wire:
    """Base of all messages and frames: a frozen dataclass whose annotations are its fields.

    Attributes:
        tag: the message's first byte, as a character.
        layout: its fields on the wire.
    """

    __slots__ = ()
    tag: ClassVar[str]
    layout: ClassVar[Layout]

    def __init_subclass__(cls) -> None:
        cls.layout = Layout(cls)

    @classmethod
    def decode(cls, data: bytes, *, in_stream: bool = False, parallel: bool = False) -> Self:
        """Read exactly this message.

        Args:
            data: the whole message, starting with its tag, and no other bytes.
            in_stream: it was sent between Stream Start and Stream Stop, where changes have their
                (sub)transaction's id.
            parallel: START_REPLICATION requested ``streaming 'parallel'``, with which Stream Abort
                has the LSN and the time of the abort.

        Raises:
            ProtocolError: the bytes are anything else.
        """
        if not data or chr(data[0]) != cls.tag:
            raise unknown_tag(f"{cls.__name__} message", data, (ord(cls.tag),))
        reader = Reader(data, cls.__name__, in_stream, parallel)
        message = cls.read(reader)
        reader.end()
        return message

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the message after its tag, and ignore bytes after the message."""
        return cls(*cls.layout.read(reader))

    def encode(self) -> bytes:
        """The message's bytes, its tag first; ``decode`` gives an equal message back.

        Raises:
            ValueError: a field holds what has no place on the wire.
        """
        writer = Writer(self.tag)
        self._write(writer)
        return writer.finish()

    def _write(self, writer: Writer) -> None:
        self.layout.write(writer, self)
