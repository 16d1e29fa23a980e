"""Finds the messages of a COPY in binary form in received bytes.

Each row is a separate message. Visiting each in Python would take as long as decoding it, so numpy
searches for the start of rows: a tag, the length, and the number of columns. Bytes of a value may
look the same. But the first place is known to be a row; if each further place is exactly where the
message before it ends, then all of them are rows. If not, the messages are visited one by one.

This module knows no socket. Source: the manual, "Message Formats", and "COPY", "Binary Format".

Its figure: a copy to Delta, at least 0.6 times the rate of COPY to /dev/null.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import psycopg
from psycopg import errors
from psycopg.errors import Diagnostic

from pgsluice.errors import ProtocolError
from pgsluice.types.buffers import Bytes, Int64s, integers

_LENGTH = struct.Struct(">I")
_TAG_BYTES = 1 + _LENGTH.size
"""The header of a message: its tag and its length; the length includes itself, but not the tag."""
_ROW_HEAD = struct.Struct(">cIH")
_ROW = b"d"
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
TRAILER_BYTES = 2
"""The marker for the end of the rows: a number of columns of -1."""
_IGNORED = b"cNSA"
"""The messages that end the rows, and those that may come at any time: notices, settings and
notifications."""
_READY = b"Z\0\0\0\5"
_AT_ONCE = 256 * 1024
"""How many bytes to search at once: they fit into the processor's cache."""
_LONG = 1024
"""The row length, in bytes, from which visiting rows one by one is faster than searching."""


@dataclass(slots=True)
class CopyMessages:
    """The state of the messages of one COPY.

    Attributes:
        is_over: the server waits for the next statement.
        error: the server's error, if it failed.
    """

    is_over: bool = False
    error: psycopg.Error | None = None
    _columns: int | None = None
    _rows: int = 0
    _has_header: bool = False
    _starts: list[Int64s] = field(default_factory=list)
    _ends: list[Int64s] = field(default_factory=list)

    def follow(self, data: Bytes, begin: int, end: int) -> int:
        """Read the complete messages in ``data[begin:end]``, and remember where their rows are.

        Args:
            begin: where a message starts.

        Returns:
            where the first incomplete message starts.

        Raises:
            ProtocolError: a message that no COPY in binary form has.
        """
        while True:
            begin = self._follow_rows(data, begin, end)
            behind = begin + message_bytes(data[begin:end])
            if behind > end:
                return begin
            self._take(data, begin, behind)
            begin = behind

    def take_rows(self) -> tuple[Int64s, Int64s]:
        """The start and end of the rows that were read since the last call."""
        starts, ends = (
            np.concatenate([np.zeros(0, np.int64), *places])
            for places in (self._starts, self._ends)
        )
        self._starts, self._ends = [], []
        return starts, ends

    def _found(self, starts: Int64s, ends: Int64s) -> None:
        self._starts.append(starts)
        self._ends.append(ends)
        self._rows += len(starts)

    def _follow_rows(self, data: Bytes, begin: int, end: int) -> int:
        """Read rows up to the first message that is not a row, or is incomplete."""
        while self._has_header and self._columns is not None:
            places, ends = _rows(data, begin, end, self._columns)
            if not len(places):
                break
            self._found(places + _TAG_BYTES, ends)
            begin = int(ends[-1])
        return begin

    def _take(self, data: Bytes, begin: int, behind: int) -> None:
        """Read one complete message."""
        tag, body = data[begin : begin + 1].tobytes(), begin + _TAG_BYTES
        if tag == _ROW and self._columns is not None:
            self._take_data(data, body, behind)
        elif tag == b"H" and self._columns is None:
            self._columns = int.from_bytes(data[body + 1 : body + 3].tobytes())
        elif tag == b"C":
            if data[body:behind].tobytes() != b"COPY %d\0" % self._rows:
                raise unreadable()
        elif tag == b"E":
            self.error = _error(data[body:behind].tobytes())
        elif tag == b"Z":
            self.is_over = True
        elif tag not in _IGNORED:
            raise unreadable()

    def _take_data(self, data: Bytes, body: int, behind: int) -> None:
        """Read the first or last data message, or a row that :func:`_rows` did not recognise."""
        if not self._has_header:
            body += header_bytes(data[body:behind])
            self._has_header = True
        if behind - body > TRAILER_BYTES:  # a row has columns
            self._found(np.array([body]), np.array([behind]))


def may_be_over(received: Bytes) -> bool:
    """Whether the received bytes end like a complete answer; the bytes of a value may look the
    same."""
    return received[-len(_READY) - 1 : -1].tobytes() == _READY


def message_bytes(received: Bytes) -> int:
    """The size of the message that starts there; more than the available bytes if that is
    unknown."""
    if len(received) < _TAG_BYTES:
        return _TAG_BYTES
    (length,) = _LENGTH.unpack(received[1:_TAG_BYTES].tobytes())
    return 1 + int(length)


def header_bytes(data: Bytes) -> int:
    """How many bytes of the first data message belong to the header: it also has the first row or
    the trailer.

    Raises:
        ProtocolError: it is not the start of COPY's binary form.
    """
    header = data[:_HEADER_BYTES].tobytes()
    if len(header) < _HEADER_BYTES or not header.startswith(_SIGNATURE):
        raise unreadable()
    (extension,) = _LENGTH.unpack(header[-_LENGTH.size :])
    return _HEADER_BYTES + int(extension)


def query_message(command: bytes) -> bytes:
    """The message that lets the server run a statement."""
    return b"Q" + _LENGTH.pack(_LENGTH.size + len(command) + 1) + command + b"\0"


def unreadable() -> ProtocolError:
    """The error for bytes that are not rows in COPY's binary form."""
    return ProtocolError(
        "the server's answer to COPY is not in PostgreSQL's binary format",
        hint="check whether a proxy between pgsluice and the server changes the rows",
    )


def _rows(data: Bytes, begin: int, end: int, columns: int) -> tuple[Int64s, Int64s]:
    """Start and end of consecutive rows; none if the message at ``begin`` is not a row."""
    window = data[begin : min(end, begin + _AT_ONCE)]
    places = None if message_bytes(window) > _LONG else _rows_by_look(window, columns)
    if places is None:
        places = _rows_one_by_one(window, columns)
    places += begin
    ends = places + 1 + integers(data, places + 1, ">u4")
    whole = len(ends) - (1 if len(ends) and ends[-1] > end else 0)
    return places[:whole], ends[:whole]


def _rows_by_look(window: Bytes, columns: int) -> Int64s | None:
    """The start of messages that look like rows, the first one at 0; None if some are not rows.

    The last one may be incomplete.
    """
    high, low = divmod(columns, 256)
    is_like_row = window[: -_ROW_HEAD.size + 1] == _ROW[0]
    is_like_row &= window[_TAG_BYTES:-1] == high
    is_like_row &= window[_TAG_BYTES + 1 :] == low
    places = np.flatnonzero(is_like_row)
    ends = places + 1 + integers(window, places + 1, ">u4")
    if len(places) and (places[0] != 0 or (ends[:-1] != places[1:]).any()):
        return None
    return places


def _rows_one_by_one(window: Bytes, columns: int) -> Int64s:
    """The start of messages that are rows, the first one at 0; the last one may be incomplete."""
    places, place = [], 0
    while place + _ROW_HEAD.size <= len(window):
        tag, length, count = _ROW_HEAD.unpack_from(window.data, place)
        if tag != _ROW or count != columns:
            break
        places.append(place)
        place += 1 + length
    return np.array(places, np.int64)


def _error(body: bytes) -> psycopg.Error:
    """The text of an ErrorResponse, in the form of libpq's errors."""
    fields: dict[int, bytes | None] = {text[0]: text[1:] for text in body.split(b"\0") if text}
    said = Diagnostic(fields)
    try:
        kind = errors.lookup(said.sqlstate or "")
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(f"{said.severity}:  {said.message_primary}", info=fields)
