"""What all messages share: a tag, and a way from bytes and back.

A message is a small frozen dataclass that says in ``_read`` and ``_write`` which fields it
has on the wire, in their order. Everything around the fields is here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

from pgsluice.errors import ProtocolError
from pgsluice.wire.reading import Reader, Writer

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 UTC, where the wire's timestamps begin, in microseconds since 1970-01-01 UTC."""


def unknown_tag(what: str, data: bytes, known: Iterable[int]) -> ProtocolError:
    """The error for bytes that begin like no message.

    Args:
        what: what they should be.
        data: the bytes.
        known: the tags that may stand there.
    """
    expected = f"a tag out of {''.join(chr(tag) for tag in known)!r}"
    got = f"byte {data[0]:#04x}" if data else "nothing"
    return ProtocolError(
        f"{what}, offset 0: expected {expected}, got {got}",
        tag=chr(data[0]) if data else None,
        offset=0,
        expected=expected,
    )


class Wire:
    """Base of all messages and frames.

    Attributes:
        tag: the message's first byte, as a character.
    """

    __slots__ = ()
    tag: ClassVar[str]

    @classmethod
    def decode(cls, data: bytes, *, in_stream: bool = False, parallel: bool = False) -> Self:
        """Read exactly this message.

        Args:
            data: the whole message, its tag first, and nothing after it.
            in_stream: it came between Stream Start and Stream Stop, where changes carry
                their (sub)transaction's id.
            parallel: START_REPLICATION asked for ``streaming 'parallel'``, where Stream
                Abort says when and where.

        Raises:
            ProtocolError: the bytes are anything else.
        """
        if not data or chr(data[0]) != cls.tag:
            raise unknown_tag(f"{cls.__name__} message", data, (ord(cls.tag),))
        return cls.read(Reader(data, cls.__name__, in_stream, parallel))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the message whose tag has been looked at, up to its end."""
        message = cls._read(reader)
        reader.end()
        return message

    @classmethod
    def read_first(cls, reader: Reader) -> Self:
        """The same, with anything after it; the reader stands behind it then."""
        return cls._read(reader)

    def encode(self) -> bytes:
        """The message's bytes, its tag first; ``decode`` gives an equal message back.

        Raises:
            ValueError: a field holds what has no place on the wire.
        """
        writer = Writer(self.tag)
        self._write(writer)
        return writer.finish()

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        raise NotImplementedError

    def _write(self, writer: Writer) -> None:
        raise NotImplementedError
