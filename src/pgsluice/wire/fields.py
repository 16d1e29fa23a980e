"""Messages and their fields: how each kind of field is read and written.

A message declares its fields once, as annotations of its dataclass, in their order on the
wire. The names are those of the manual's section "Message Data Types" and of PostgreSQL's
source::

    final_lsn: XLogRecPtr
    commit_timestamp: TimestampTz
    xid: TransactionId

The meaning of a kind is documented here, and not again at each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from struct import Struct
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire.reading import Reader, Writer

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 UTC, where the wire's timestamps begin, in microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class Field:
    """One kind of field. ``read`` takes the reader and the field's name, and returns the value;
    ``write`` takes the writer, the value and the field's name."""

    read: Callable[[Reader, str], Any]
    write: Callable[[Writer, Any, str], None]


def flag_byte(known: int) -> Field:
    """A byte of flags; bits that are not in ``known`` are refused."""
    return Field(
        lambda reader, name: reader.flags(name, known),
        lambda writer, value, name: writer.flags(value, name, known),
    )


def counted(kind: type, prefix: str, least: int) -> Field:
    """An Int16 that counts records, and the records.

    Args:
        kind: the records' class.
        prefix: what errors put before the names of its fields.
        least: the size in bytes of the smallest record.
    """
    layout = Layout(kind, prefix)

    def read(reader: Reader, name: str) -> tuple[Any, ...]:
        count = reader.count(2, f"{prefix}count", least)
        return tuple([kind(*layout.read(reader)) for _ in range(count)])

    def write(writer: Writer, records: tuple[Any, ...], name: str) -> None:
        writer.i16(len(records), f"{prefix}count")
        for record in records:
            layout.write(writer, record)

    return Field(read, write)


def if_parallel(kind: type, prefix: str) -> Field:
    """A record that is there only under ``streaming 'parallel'``; None otherwise. Arguments as for
    :func:`counted`."""
    layout = Layout(kind, prefix)

    def read(reader: Reader, name: str) -> Any:
        return kind(*layout.read(reader)) if reader.parallel else None

    def write(writer: Writer, record: object | None, name: str) -> None:
        if record is not None:
            layout.write(writer, record)

    return Field(read, write)


def _read_counted_bytes(reader: Reader, name: str) -> bytes:
    return reader.take(reader.count(4, f"{name} length", 1))


def _write_counted_bytes(writer: Writer, value: bytes, name: str) -> None:
    writer.i32(len(value), f"{name} length")
    writer.raw(value)


_ID = Field(Reader.u32, Writer.u32)
_STREAM_XID = Field(Reader.u32, Writer.u32)

Oid = Annotated[int, _ID]
TransactionId = Annotated[int, _ID]
UInt32 = Annotated[int, Field(Reader.u32, Writer.u32)]
Int32 = Annotated[int, Field(Reader.i32, Writer.i32)]
XLogRecPtr = Annotated[Lsn, Field(Reader.lsn, Writer.lsn)]
TimestampTz = Annotated[int, Field(Reader.i64, Writer.i64)]
"""Microseconds since 2000-01-01 UTC."""
String = Annotated[str, Field(Reader.string, Writer.string)]
Boolean = Annotated[bool, Field(Reader.boolean, Writer.boolean)]
NoFlags = Annotated[int, flag_byte(0)]
"""A byte of flags of which none is known: 0."""
CountedBytes = Annotated[bytes, Field(_read_counted_bytes, _write_counted_bytes)]
Rest = Annotated[
    bytes,
    Field(lambda reader, name: reader.rest(), lambda writer, value, name: writer.raw(value)),
]
StreamXid = Annotated[int | None, _STREAM_XID]
"""The (sub)transaction's id, which a message has only between Stream Start and Stream Stop,
regardless of the protocol's version. A message with ``xid=None`` has none. It is the first field on
the wire, and the last attribute of its class."""


def _ids(names: list[str]) -> tuple[Struct, str] | None:
    """Neighbouring ids, which are read at once: most messages start with them."""
    return (Struct(f">{len(names)}I"), " and ".join(names)) if names else None


class Layout:
    """The fields of a class, in their order on the wire: its annotations. Errors put ``prefix``
    before their names."""

    __slots__ = ("_fields", "_has_xid", "_ids", "_ids_in_stream", "_others", "_prefix")

    def __init__(self, kind: type, prefix: str = "") -> None:
        self._prefix = prefix
        fields = [
            (name, field)
            for name, hint in get_type_hints(kind, include_extras=True).items()
            for field in getattr(hint, "__metadata__", ())
        ]
        self._has_xid = any(field is _STREAM_XID for _, field in fields)
        self._fields = [item for item in fields if item[1] is not _STREAM_XID]
        ids = [name for name, _ in takewhile(lambda item: item[1] is _ID, self._fields)]
        self._ids = _ids(ids)
        self._ids_in_stream = _ids(["xid", *ids]) if self._has_xid else self._ids
        self._others = [(prefix + name, field.read) for name, field in self._fields[len(ids) :]]

    def read(self, reader: Reader) -> list[Any]:
        """The values of the attributes, in their order; raises ProtocolError if a field cannot be
        read."""
        ids = self._ids_in_stream if reader.in_stream else self._ids
        if ids is None:
            return [read(reader, name) for name, read in self._others]
        values = [*reader.ids(*ids)]
        for name, read in self._others:
            values.append(read(reader, name))
        if ids is not self._ids:
            values.append(values.pop(0))
        return values

    def write(self, writer: Writer, record: object) -> None:
        """Write the attributes of a record; raises ValueError if one holds what has no place on the
        wire."""
        if self._has_xid:
            writer.xid(record.xid)  # type: ignore[attr-defined]
        for name, field in self._fields:
            field.write(writer, getattr(record, name), self._prefix + name)


def unknown_tag(kind: str, data: bytes, known: Iterable[int]) -> ProtocolError:
    """The error for bytes whose first byte is not one of the known tags. ``kind``: the expected
    kind of bytes, as text."""
    expected = f"a tag out of {''.join(chr(tag) for tag in known)!r}"
    got = f"byte {data[0]:#04x}" if data else "nothing"
    return ProtocolError(
        f"{kind}, offset 0: expected {expected}, got {got}",
        tag=chr(data[0]) if data else None,
        offset=0,
        expected=expected,
    )


class Wire:
    """Base of all messages and frames: a frozen dataclass whose annotations are its fields on the
    wire (``layout``), after the ``tag``, one byte."""

    __slots__ = ()
    tag: ClassVar[str]
    layout: ClassVar[Layout]

    def __init_subclass__(cls) -> None:
        cls.layout = Layout(cls)

    @classmethod
    def decode(cls, data: bytes, *, in_stream: bool = False, parallel: bool = False) -> Self:
        """Read exactly this message; arguments and errors are those of
        :func:`pgsluice.wire.decode_message`."""
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
        """The message's bytes, its tag first; ``decode`` gives an equal message back. Raises
        ValueError if a field holds what has no place on the wire."""
        writer = Writer(self.tag)
        self._write(writer)
        return writer.finish()

    def _write(self, writer: Writer) -> None:
        self.layout.write(writer, self)
