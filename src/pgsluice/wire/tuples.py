"""A row on the wire: for each column a kind, and bytes where the kind has some.

===== ====================================================================
kind  meaning
===== ====================================================================
``n`` NULL; in a key tuple also "not part of the key, not sent"
``u`` unchanged and stored out of line (TOAST): the value is not sent
``t`` the type's text form, in ``client_encoding``, without a NUL at its end
``b`` the type's binary form (option ``binary``, PostgreSQL 14+)
===== ====================================================================

Source: PostgreSQL's ``src/backend/replication/logical/proto.c``, ``logicalrep_write_tuple``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Annotated, Final

from pgsluice.errors import ProtocolError
from pgsluice.wire.fields import Field
from pgsluice.wire.reading import Reader, Writer

_COUNT = Struct(">h")
_HEAD = Struct(">Bi")  # kind and length
_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_KEY, _OLD, _NEW = b"KON"


class _Unchanged(Enum):
    UNCHANGED = "u"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""In :meth:`TupleData.of`: a value that the server did not send."""


@dataclass(frozen=True, slots=True)
class TupleData:
    """The columns of one row, in the order of its Relation message.

    Attributes:
        kinds: one byte a column: ``n``, ``u``, ``t`` or ``b``.
        values: one element a column: the bytes of ``t`` and ``b``, None for ``n`` and ``u``.
    """

    kinds: bytes
    values: tuple[bytes | None, ...]

    @classmethod
    def of(cls, *values: str | bytes | _Unchanged | None) -> TupleData:
        """Make a tuple of plain values: a str is a text value, bytes are a binary one, None is
        NULL, and :data:`UNCHANGED` a value that is not sent."""
        kinds = bytearray()
        encoded: list[bytes | None] = []
        for value in values:
            match value:
                case None:
                    kinds.append(_NULL)
                    encoded.append(None)
                case _Unchanged.UNCHANGED:
                    kinds.append(_UNCHANGED)
                    encoded.append(None)
                case str():
                    kinds.append(_TEXT)
                    encoded.append(value.encode())
                case bytes():
                    kinds.append(_BINARY)
                    encoded.append(value)
        return cls(bytes(kinds), tuple(encoded))

    def __len__(self) -> int:
        return len(self.kinds)

    def is_null(self, column: int) -> bool:
        """Whether the column is NULL, or (in a key tuple) not part of the key."""
        return self.kinds[column] == _NULL

    def is_unchanged(self, column: int) -> bool:
        """Whether the value was not sent, being unchanged."""
        return self.kinds[column] == _UNCHANGED

    def is_binary(self, column: int) -> bool:
        """Whether the value is in the type's binary form."""
        return self.kinds[column] == _BINARY

    @classmethod
    def read(cls, reader: Reader) -> TupleData:
        """Read the tuple at the reader's offset; raises ProtocolError if the bytes are no tuple."""
        # The only hot loop of this package: it has local names, and reads kind and length at once.
        # For a kind without a length, or at the message's end, that length is not used.
        data = reader.data
        size = len(data)
        last = size - _HEAD.size
        at = reader.offset + _COUNT.size
        count = _COUNT.unpack_from(data, reader.offset)[0] if at <= size else -1
        if not 0 <= count <= size - at:
            reader.count(2, "column count", 1)  # raises the error
        unpack = _HEAD.unpack_from
        kinds = bytearray(count)
        values: list[bytes | None] = [None] * count
        for column in range(count):
            if at <= last:
                kind, length = unpack(data, at)
                if kind in b"tb":
                    kinds[column] = kind
                    start = at + _HEAD.size
                    end = start + length
                    if end > size or length < 0:
                        raise _wrong_length(reader, column, at + 1, length)
                    values[column] = data[start:end]
                    at = end
                    continue
            elif at < size:
                kind = data[at]
            else:
                raise reader.wrong(
                    f"the kind of column {column}", offset=at, got="the message's end"
                )
            if kind not in b"nu":
                raise _wrong_kind(reader, column, at, kind)
            kinds[column] = kind
            at += 1
        reader.offset = at
        return cls(bytes(kinds), tuple(values))

    def write(self, writer: Writer) -> None:
        """Write the tuple; raises ValueError if kinds and values do not belong together."""
        if len(self.kinds) != len(self.values):
            raise ValueError("a tuple has as many kinds as values")
        writer.i16(len(self.kinds), "column count")
        for kind, value in zip(self.kinds, self.values, strict=True):
            if kind not in (b"nu" if value is None else b"tb"):
                raise ValueError(f"kind {chr(kind)!r} and its value do not belong together")
            writer.u8(kind, "kind")
            if value is not None:
                writer.i32(len(value), "length")
                writer.raw(value)


def _wrong_length(reader: Reader, column: int, at: int, length: int) -> ProtocolError:
    left = len(reader.data) - at - 4
    return reader.wrong(
        f"a length of column {column} from 0 to the {left} bytes left", offset=at, got=str(length)
    )


def _wrong_kind(reader: Reader, column: int, at: int, kind: int) -> ProtocolError:
    if kind in b"tb":
        left = len(reader.data) - at - 1
        return reader.wrong(
            f"4 bytes of length of column {column}",
            offset=at + 1,
            got=f"{left} up to the message's end",
        )
    return reader.wrong(
        f"the kind of column {column}, one of 'n', 'u', 't', 'b'",
        offset=at,
        got=f"byte {kind:#04x}",
    )


@dataclass(frozen=True, slots=True)
class OldKey:
    """The old row's replica identity: all columns, with ``n`` in those outside the key, where it
    means nothing."""

    data: TupleData


@dataclass(frozen=True, slots=True)
class OldRow:
    """The old row in full (REPLICA IDENTITY FULL)."""

    data: TupleData


def _read_new(reader: Reader, name: str) -> TupleData:
    reader.part(b"N", "the new tuple")
    return TupleData.read(reader)


def _write_new(writer: Writer, new: TupleData, name: str) -> None:
    writer.u8(_NEW, name)
    new.write(writer)


def _read_old(reader: Reader, name: str, allowed: bytes = b"KO") -> OldKey | OldRow:
    part = reader.part(allowed, "a tuple")
    data = TupleData.read(reader)
    return OldKey(data) if part == _KEY else OldRow(data)


def _write_old(writer: Writer, old: OldKey | OldRow, name: str) -> None:
    writer.u8(_KEY if isinstance(old, OldKey) else _OLD, name)
    old.data.write(writer)


def _read_old_if_any(reader: Reader, name: str) -> OldKey | OldRow | None:
    if reader.data.startswith(b"N", reader.offset):
        return None
    return _read_old(reader, name, b"KON")


def _write_old_if_any(writer: Writer, old: OldKey | OldRow | None, name: str) -> None:
    if old is not None:
        _write_old(writer, old, name)


NewTuple = Annotated[TupleData, Field(_read_new, _write_new)]
"""``N`` and the row."""
OldTuple = Annotated[OldKey | OldRow, Field(_read_old, _write_old)]
"""``K`` and the old key, or ``O`` and the old row."""
OldTupleIfAny = Annotated[OldKey | OldRow | None, Field(_read_old_if_any, _write_old_if_any)]
"""The same, or nothing if the new tuple follows at once."""
