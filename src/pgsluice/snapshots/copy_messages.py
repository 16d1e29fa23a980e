"""The messages with which a server sends rows by COPY in binary form, found in received bytes.

Each row is a message of its own. A step of Python for each would take as long as decoding it, so
numpy looks for them: a row's message has a tag, its length, and the number of columns. Bytes of a
value may look like that, too. But if each place that does is where the message of the place before
ends, then all of them are rows, by induction from the first one, which is known to be one. If not,
the messages are followed one by one.

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
"""Of a message; the length counts itself, and not the tag."""
_ROW_HEAD = struct.Struct(">cIH")
_ROW = b"d"
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
TRAILER_BYTES = 2
"""What stands for the end of the rows: the number of columns, which is -1."""
_IGNORED = b"cNSA"
"""The end of the rows, and what may come at any time: notices, settings and notifications."""
_READY = b"Z\0\0\0\5"
_AT_ONCE = 256 * 1024
"""So many bytes are looked through at once: they stay in the processor's cache."""
_LONG = 1024
"""Rows that are longer are sooner followed one by one than looked for."""


@dataclass(slots=True)
class CopyMessages:
    """What the messages of one COPY have said so far.

    Attributes:
        is_over: the server waits for the next statement.
        error: why it gave up.
    """

    is_over: bool = False
    error: psycopg.Error | None = None
    _columns: int | None = None
    _rows: int = 0
    _has_header: bool = False
    _starts: list[Int64s] = field(default_factory=list)
    _ends: list[Int64s] = field(default_factory=list)

    def follow(self, data: Bytes, begin: int, end: int) -> int:
        """Read the messages that are whole in ``data[begin:end]``.

        Args:
            begin: where a message begins.

        Returns:
            where the first message begins that is not whole.

        Raises:
            ProtocolError: a COPY in binary form has no such message.
        """
        while True:
            begin = self._follow_rows(data, begin, end)
            behind = begin + message_bytes(data[begin:end])
            if behind > end:
                return begin
            self._take(data, begin, behind)
            begin = behind

    def take_rows(self) -> tuple[Int64s, Int64s]:
        """Where the rows begin and end that were read since this was last asked."""
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
        """Read rows up to the first message that is none, or is not whole."""
        while self._has_header and self._columns is not None:
            places, ends = _rows(data, begin, end, self._columns)
            if not len(places):
                break
            self._found(places + _TAG_BYTES, ends)
            begin = int(ends[-1])
        return begin

    def _take(self, data: Bytes, begin: int, behind: int) -> None:
        """Read one message that is whole."""
        tag, body = data[begin : begin + 1].tobytes(), begin + _TAG_BYTES
        if tag == _ROW and self._columns is not None:
            self._take_data(data, body, behind)
        elif tag == b"H" and self._columns is None:
            self._columns = int.from_bytes(data[body + 1 : body + 3].tobytes())
        elif tag == b"C":
            _refuse_other_count(data[body:behind].tobytes(), self._rows)
        elif tag == b"E":
            self.error = _error(data[body:behind].tobytes())
        elif tag == b"Z":
            self.is_over = True
        elif tag not in _IGNORED:
            raise unreadable()

    def _take_data(self, data: Bytes, body: int, behind: int) -> None:
        """Read the first data, the last data, or a row that :func:`_rows` does not take for one."""
        if not self._has_header:
            body += header_bytes(data[body:behind])
            self._has_header = True
        if behind - body > TRAILER_BYTES:  # a row has columns
            self._found(np.array([body]), np.array([behind]))


def may_be_over(received: Bytes) -> bool:
    """Whether received bytes end as those of a statement do; those of a value may, too."""
    return received[-len(_READY) - 1 : -1].tobytes() == _READY


def message_bytes(received: Bytes) -> int:
    """How many bytes the message has that begins there; more than there are, if that is open."""
    if len(received) < _TAG_BYTES:
        return _TAG_BYTES
    (length,) = _LENGTH.unpack(received[1:_TAG_BYTES].tobytes())
    return 1 + int(length)


def header_bytes(data: Bytes) -> int:
    """How many bytes of the first data are no row: it comes with the first row or the trailer.

    Raises:
        ProtocolError: that is not the beginning of COPY's binary form.
    """
    header = data[:_HEADER_BYTES].tobytes()
    if len(header) < _HEADER_BYTES or not header.startswith(_SIGNATURE):
        raise unreadable()
    (extension,) = _LENGTH.unpack(header[-_LENGTH.size :])
    return _HEADER_BYTES + int(extension)


def query_message(command: bytes) -> bytes:
    """The message that has the server run a statement."""
    return b"Q" + _LENGTH.pack(_LENGTH.size + len(command) + 1) + command + b"\0"


def unreadable() -> ProtocolError:
    """The error for bytes that are not rows in COPY's binary form."""
    return ProtocolError(
        "the server does not send rows in COPY's binary form",
        hint="is there a proxy between pgsluice and the server?",
    )


def _rows(data: Bytes, begin: int, end: int, columns: int) -> tuple[Int64s, Int64s]:
    """Where messages begin and end that are rows; none if that at ``begin`` is not."""
    window = data[begin : min(end, begin + _AT_ONCE)]
    places = None if message_bytes(window) > _LONG else _rows_by_look(window, columns)
    if places is None:
        places = _rows_one_by_one(window, columns)
    places += begin
    ends = places + 1 + integers(data, places + 1, ">u4")
    whole = len(ends) - (1 if len(ends) and ends[-1] > end else 0)
    return places[:whole], ends[:whole]


def _rows_by_look(window: Bytes, columns: int) -> Int64s | None:
    """Where messages begin that look like rows, the first one at 0; None if they are not all rows.

    The last one may be cut off.
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
    """Where messages begin that are rows, the first one at 0; the last one may be cut off."""
    places, place = [], 0
    while place + _ROW_HEAD.size <= len(window):
        tag, length, count = _ROW_HEAD.unpack_from(window.data, place)
        if tag != _ROW or count != columns:
            break
        places.append(place)
        place += 1 + length
    return np.array(places, np.int64)


def _refuse_other_count(said: bytes, rows: int) -> None:
    """Compare the rows that were found with what CommandComplete says."""
    if said != b"COPY %d\0" % rows:
        raise unreadable()


def _error(body: bytes) -> psycopg.Error:
    """What an ErrorResponse says, as libpq's errors have it."""
    fields: dict[int, bytes | None] = {text[0]: text[1:] for text in body.split(b"\0") if text}
    said = Diagnostic(fields)
    try:
        kind = errors.lookup(said.sqlstate or "")
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(f"{said.severity}:  {said.message_primary}", info=fields)
