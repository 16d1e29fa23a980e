"""Reads fields from bytes that were not checked before, and writes them.

Rules:
- Every length is checked before anything is read, so a wrong byte never costs more memory than the
  size of the input.
- A field that cannot be read raises :class:`~pgsluice.errors.ProtocolError` with ``tag``,
  ``offset`` (of the field in the message) and ``expected``. The error never has the message's
  content.
- A :class:`Writer` raises ``ValueError`` for a value that its reader could not read back.

All integers are big-endian (the manual, section "Message Data Types").
"""

from __future__ import annotations

import struct
from struct import Struct, unpack_from

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn

_U8 = Struct(">B")
_I16 = Struct(">h")
_I32 = Struct(">i")
_U32 = Struct(">I")
_I64 = Struct(">q")
_unpack_u32 = _U32.unpack_from
_unpack_i64 = _I64.unpack_from

MAX_LSN = 2**63 - 1


class Reader:
    """Reads one message, field by field.

    Attributes:
        data: the whole message, starting with its tag.
        offset: where the next field starts.
        name: the message's name, for errors.
        in_stream, parallel: as in :func:`pgsluice.wire.decode_message`.
    """

    __slots__ = ("data", "in_stream", "name", "offset", "parallel")

    def __init__(self, data: bytes, name: str, in_stream: bool, parallel: bool) -> None:
        self.data = data
        self.offset = 1
        self.name = name
        self.in_stream = in_stream
        self.parallel = parallel

    def wrong(self, expected: str, *, offset: int | None = None, got: str) -> ProtocolError:
        """The error for unexpected bytes, to be raised by the caller: what is expected, and what is
        there, as text without the content. ``offset``: the place, from the message's first byte;
        None: the next field's."""
        start = self.offset if offset is None else offset
        tag = chr(self.data[0])
        return ProtocolError(
            f"{self.name} message ({tag!r}), offset {start}: expected {expected}, got {got}",
            tag=tag,
            offset=start,
            expected=expected,
        )

    def _short(self, field: str, size: int) -> ProtocolError:
        left = len(self.data) - self.offset
        return self.wrong(f"{size} bytes of {field}", got=f"{left} up to the message's end")

    # struct checks the bounds before it reads. An exception that is not raised costs nothing, a
    # check of our own would, and these methods take most of a message's time.

    def u8(self, field: str) -> int:
        start = self.offset
        if start >= len(self.data):
            raise self._short(field, 1)
        self.offset = start + 1
        return self.data[start]

    def i16(self, field: str) -> int:
        return self._number(_I16, field)

    def i32(self, field: str) -> int:
        return self._number(_I32, field)

    def _number(self, layout: Struct, field: str) -> int:
        start = self.offset
        try:
            value: int = layout.unpack_from(self.data, start)[0]
        except struct.error:
            raise self._short(field, layout.size) from None
        self.offset = start + layout.size
        return value

    def u32(self, field: str) -> int:
        """An OID or a transaction id: both are unsigned."""
        start = self.offset
        try:
            value: int = _unpack_u32(self.data, start)[0]
        except struct.error:
            raise self._short(field, 4) from None
        self.offset = start + 4
        return value

    def i64(self, field: str) -> int:
        """A timestamp: microseconds since 2000-01-01 UTC."""
        start = self.offset
        try:
            value: int = _unpack_i64(self.data, start)[0]
        except struct.error:
            raise self._short(field, 8) from None
        self.offset = start + 8
        return value

    def lsn(self, field: str) -> Lsn:
        """An LSN: unsigned on the wire, but no server gets past 2^63 - 1."""
        start = self.offset
        try:
            value: int = _unpack_i64(self.data, start)[0]
        except struct.error:
            raise self._short(field, 8) from None
        if value < 0:
            raise self.wrong(f"{field} up to 2^63 - 1", got="more")
        self.offset = start + 8
        return int.__new__(Lsn, value)  # not Lsn(): its only check is done

    def flags(self, field: str, known: int) -> int:
        """A byte of flags of which only the bits in ``known`` have a meaning."""
        value = self.u8(field)
        if value & ~known:
            raise self.wrong(
                f"{field} with no other bits than {known:#x}",
                offset=self.offset - 1,
                got=f"{value:#x}",
            )
        return value

    def boolean(self, field: str) -> bool:
        return self.flags(field, 1) == 1

    def count(self, layout_size: int, field: str, least: int) -> int:
        """A number of items, all in the bytes that follow, of which each has at least ``least``
        bytes. ``layout_size``: 2 or 4, the width of the number itself."""
        start = self.offset
        value = self.i16(field) if layout_size == 2 else self.i32(field)
        left = len(self.data) - self.offset
        if value < 0:
            raise self.wrong(f"{field} of at least 0", offset=start, got=str(value))
        if value * least > left:
            raise self.wrong(
                f"{field} that fits the {left} bytes left",
                offset=start,
                got=f"{value} x {least} or more",
            )
        return value

    def u32s(self, count: int, field: str) -> tuple[int, ...]:
        """The next ``count`` unsigned 32-bit integers."""
        start = self.offset
        end = start + 4 * count
        if end > len(self.data):
            raise self._short(field, 4 * count)
        self.offset = end
        # Not a Struct of its own: struct's cache is bounded, and counts are usually 1.
        return unpack_from(f">{count}I", self.data, start)

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes; the caller has used :meth:`count` before."""
        start = self.offset
        self.offset = start + size
        return self.data[start : start + size]

    def rest(self) -> bytes:
        """All bytes of the message that are left."""
        return self.take(len(self.data) - self.offset)

    def string(self, field: str) -> str:
        """Bytes up to a NUL, in UTF-8 (``client_encoding`` is always set to it)."""
        start = self.offset
        end = self.data.find(0, start)
        if end < 0:
            raise self.wrong(f"a NUL at the end of {field}", offset=start, got="none up to the end")
        self.offset = end + 1
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            position = start + error.start
        # Outside the handler: the original error would carry the content along.
        raise self.wrong(f"{field} in UTF-8", offset=position, got="other bytes")

    def ids(self, layout: Struct, names: str) -> tuple[int, ...]:
        """Neighbouring OIDs and transaction ids; ``names``: their names, for the error."""
        start = self.offset
        try:
            values: tuple[int, ...] = layout.unpack_from(self.data, start)
        except struct.error:
            raise self._short(names, layout.size) from None
        self.offset = start + layout.size
        return values

    def xid(self) -> int | None:
        """The (sub)transaction's id, there only between Stream Start and Stream Stop."""
        return self.u32("xid") if self.in_stream else None

    def part(self, allowed: bytes, field: str) -> int:
        """A byte that selects one of the ``allowed`` kinds, or what follows; ``field``: its
        meaning."""
        value = self.u8(field)
        if value not in allowed:
            parts, got = " or ".join(repr(chr(part)) for part in allowed), f"byte {value:#04x}"
            raise self.wrong(f"{parts} for {field}", offset=self.offset - 1, got=got)
        return value

    def end(self) -> None:
        """Raise ProtocolError if bytes follow the last field."""
        left = len(self.data) - self.offset
        if left:
            raise self.wrong("the message's end", got=f"{left} more bytes")


class Writer:
    """The counterpart of :class:`Reader`: collects a message's fields."""

    __slots__ = ("_parts",)

    def __init__(self, tag: str) -> None:
        self._parts: list[bytes] = [tag.encode("latin-1")]

    def _number(self, layout: Struct, low: int, high: int, value: int, field: str) -> None:
        if not low <= value <= high:
            raise ValueError(f"{field} is between {low} and {high}, not {value}")
        self._parts.append(layout.pack(value))

    def u8(self, value: int, field: str) -> None:
        self._number(_U8, 0, 0xFF, value, field)

    def u32(self, value: int, field: str) -> None:
        self._number(_U32, 0, 0xFFFFFFFF, value, field)

    def i16(self, value: int, field: str) -> None:
        self._number(_I16, 0, 0x7FFF, value, field)

    def i32(self, value: int, field: str) -> None:
        self._number(_I32, -(2**31), 2**31 - 1, value, field)

    def i64(self, value: int, field: str) -> None:
        self._number(_I64, -(2**63), 2**63 - 1, value, field)

    def lsn(self, value: int, field: str) -> None:
        self._number(_I64, 0, MAX_LSN, value, field)

    def flags(self, value: int, field: str, known: int) -> None:
        if value & ~known:
            raise ValueError(f"{field} has no other bits than {known:#x}, not {value:#x}")
        self.u8(value, field)

    def boolean(self, value: bool, field: str) -> None:
        self.flags(int(value), field, 1)

    def raw(self, value: bytes) -> None:
        self._parts.append(value)

    def string(self, value: str, field: str) -> None:
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{field} is text that UTF-8 can hold") from None
        if 0 in encoded:
            raise ValueError(f"{field} holds no NUL")
        self._parts += (encoded, b"\0")

    def xid(self, value: int | None) -> None:
        if value is not None:
            self.u32(value, "xid")

    def finish(self) -> bytes:
        return b"".join(self._parts)
