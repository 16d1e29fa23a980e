"""Reads messages from text: psql's output of ``pg_logical_slot_peek_binary_changes``.

The output may be aligned or not, with borders, expanded or CSV, with or without the columns lsn
and xid, or bare hexadecimal, one message on each line. Only psql's own decorations are skipped.
Anything else is an error, because it may be a damaged row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pgsluice.cli.decode.follow import Follower, Raw, Seen, input_error
from pgsluice.lsn import Lsn

_BORDER = "│".encode()  # psql's linestyle unicode: three bytes, replaced by three
_BETWEEN_COLUMNS = bytes.maketrans(b'|,;"', b"    ")
_LSN = re.compile(rb"[0-7]?[0-9A-Fa-f]{1,7}/[0-9A-Fa-f]{1,8}")
_XID = re.compile(rb"[0-9]{1,10}")
_DIGITS = re.compile(rb"([0-9A-Fa-f]{2})+")
_NOT_HEX = re.compile(rb"[^0-9A-Fa-f]")
_HEADER = re.compile(r"lsn|location|xid|data|RECORD|[0-9]+|[-+*─┼═╪┌┐└┘├┤┬┴╞╡\[\]]+")
_AROUND = re.compile(r"\(\d+ \w+\)|Time: .*|Timing is (on|off)\.|[A-Z]+( [A-Z]+)*")


def read_hex(where: str, stream: Iterable[bytes], follower: Follower) -> Iterator[Seen]:
    """The messages in lines of text.

    Raises:
        ProtocolError: a line is neither a message nor a decoration of psql, or a message is
            malformed.
    """
    offset = 0
    lsn: Lsn | None = None
    xid: int | None = None
    for number, line in enumerate(stream, start=1):
        begins, offset = offset, offset + len(line)
        text = line.replace(_BORDER, b"  |").translate(_BETWEEN_COLUMNS)
        columns = text.split()
        if (row := _row(text, columns)) is not None:
            digits, place, row_lsn, row_xid = row
            data = _unhex(digits, where, begins + place, number)
            raw = Raw(data, begins + place, 2, where, number, row_lsn or lsn, row_xid or xid)
            lsn = xid = None
            yield follower.take(raw)
        elif len(columns) == 2 and columns[0] == b"lsn" and _LSN.fullmatch(columns[1]):
            lsn = Lsn.parse(columns[1].decode())  # the expanded form has one line for each column
        elif len(columns) == 2 and columns[0] == b"xid" and _XID.fullmatch(columns[1]):
            xid = int(columns[1])
        elif not _is_decoration(columns):
            start = begins + text.index(columns[0])
            what = "expected a row as psql prints it, with a bytea in hexadecimal (\\x…)"
            hint = "use psql -At and SET bytea_output = 'hex', or name the format with --format"
            raise input_error(where, start, number, what, hint=hint)


def _row(text: bytes, columns: list[bytes]) -> tuple[bytes, int, Lsn | None, int | None] | None:
    """The hexadecimal digits of the line's message, where they begin in the line, and the LSN and
    xid in the line; None if it has no message.

    A message is one word that begins with ``\\x`` or has only hexadecimal digits. An LSN and a
    transaction id may precede it.
    """
    if not columns:
        return None
    *before, last = columns
    digits = last.lstrip(b"\\")
    if digits != last and digits.startswith(b"x"):
        digits = digits[1:]
        before = [column for column in before if column != b"data"]  # in the expanded form
    elif not _DIGITS.fullmatch(last):
        return None
    lsn = xid = None
    if before and _LSN.fullmatch(before[0]):
        lsn = Lsn.parse(before.pop(0).decode())
    if before and _XID.fullmatch(before[0]):
        xid = int(before.pop(0))
    offset = text.rindex(last) + len(last) - len(digits)
    return None if before else (digits, offset, lsn, xid)


def _is_decoration(columns: list[bytes]) -> bool:
    """Whether a line is psql's decoration of rows: headers, rules, the count, the time."""
    words = [column.decode(errors="replace") for column in columns]
    return all(map(_HEADER.fullmatch, words)) or bool(_AROUND.fullmatch(" ".join(words)))


def _unhex(digits: bytes, where: str, starts: int, line: int) -> bytes:
    """The bytes of hexadecimal digits; an error names the place of an invalid or missing one."""
    other = _NOT_HEX.search(digits)
    if other is None and len(digits) % 2 == 0:
        return bytes.fromhex(digits.decode())
    position = len(digits) if other is None else other.start()
    got = "the end" if other is None else "another character"
    what = f"expected a hexadecimal digit of the message's byte {position // 2}, got {got}"
    raise input_error(where, starts + position, line, what)
