"""Messages as text: what psql prints of ``pg_logical_slot_peek_binary_changes``.

Aligned or not, with borders, expanded, as CSV; with the columns lsn and xid or without; or
bare hexadecimal, one message a line. Around the rows only what psql itself prints is passed
over: everything else is an error, since it could be a row that was damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgsluice.cli.decode.follow import Follower, Raw, Seen, wrong_input
from pgsluice.lsn import Lsn

_BORDER = "│".encode()  # psql's linestyle unicode; three bytes, like what stands in for it
_BETWEEN_COLUMNS = bytes.maketrans(b'|,;"', b"    ")
_LSN = re.compile(rb"[0-7]?[0-9A-Fa-f]{1,7}/[0-9A-Fa-f]{1,8}")
_XID = re.compile(rb"[0-9]{1,10}")
_DIGITS = re.compile(rb"([0-9A-Fa-f]{2})+")
_NOT_HEX = re.compile(rb"[^0-9A-Fa-f]")
_HEADER = re.compile(r"lsn|location|xid|data|RECORD|[0-9]+|[-+*─┼═╪┌┐└┘├┤┬┴╞╡\[\]]+")
_AROUND = re.compile(r"\(\d+ \w+\)|Time: .*|Timing is (on|off)\.|[A-Z]+( [A-Z]+)*")


@dataclass(frozen=True, slots=True)
class _Row:
    """What a line says.

    Attributes:
        digits: of the message; empty where the line has none.
        at: where in the line they begin.
        lsn: of the message.
        xid: of its transaction.
    """

    digits: bytes
    at: int
    lsn: Lsn | None
    xid: int | None


def read_hex(where: str, stream: Iterable[bytes], follower: Follower) -> Iterator[Seen]:
    """The messages of lines of text.

    Args:
        where: the input, for errors.
        stream: its lines.
        follower: decodes them.

    Raises:
        ProtocolError: a line is neither a message nor what psql prints around them, or a
            message is wrong.
    """
    offset = 0
    lsn: Lsn | None = None
    xid: int | None = None
    for number, line in enumerate(stream, start=1):
        begins, offset = offset, offset + len(line)
        text = line.replace(_BORDER, b"  |").translate(_BETWEEN_COLUMNS)
        columns = text.split()
        row = _row(text, columns)
        if row is not None:
            data = _unhex(row.digits, where, begins + row.at, number)
            place = Raw(data, begins + row.at, 2, where, number, row.lsn or lsn, row.xid or xid)
            lsn = xid = None
            yield follower.take(place)
        elif len(columns) == 2 and columns[0] == b"lsn" and _LSN.fullmatch(columns[1]):
            lsn = Lsn.parse(columns[1].decode())  # the expanded form has a line a column
        elif len(columns) == 2 and columns[0] == b"xid" and _XID.fullmatch(columns[1]):
            xid = int(columns[1])
        elif not _is_decoration(columns):
            found = begins + text.index(columns[0])
            what = "expected a row as psql prints it, with a bytea in hexadecimal (\\x…)"
            hint = "psql -At prints rows plainly; SET bytea_output = 'hex'; or name the --format"
            raise wrong_input(where, found, number, what, hint=hint)


def _row(text: bytes, columns: list[bytes]) -> _Row | None:
    """The line's message; None when it has none.

    One word that begins with ``\\x``, or has only hexadecimal digits, after an LSN and a
    transaction id, each of which may be missing.
    """
    if not columns:
        return None
    *before, last = columns
    digits = last.lstrip(b"\\")
    if digits != last and digits.startswith(b"x"):
        digits = digits[1:]
        before = [one for one in before if one != b"data"]  # its name in the expanded form
    elif not _DIGITS.fullmatch(last):
        return None
    lsn = xid = None
    if before and _LSN.fullmatch(before[0]):
        lsn = Lsn.parse(before.pop(0).decode())
    if before and _XID.fullmatch(before[0]):
        xid = int(before.pop(0))
    at = text.rindex(last) + len(last) - len(digits)
    return None if before else _Row(digits, at, lsn, xid)


def _is_decoration(columns: list[bytes]) -> bool:
    """What psql prints around rows: headers, rules, the count, the time it took."""
    words = [column.decode(errors="replace") for column in columns]
    return all(map(_HEADER.fullmatch, words)) or bool(_AROUND.fullmatch(" ".join(words)))


def _unhex(digits: bytes, where: str, starts: int, line: int) -> bytes:
    """The bytes; a digit that is none, or missing, is an error that names it."""
    other = _NOT_HEX.search(digits)
    if other is None and len(digits) % 2 == 0:
        return bytes.fromhex(digits.decode())
    at = len(digits) if other is None else other.start()
    got = "the end" if other is None else "another character"
    what = f"expected a hexadecimal digit of the message's byte {at // 2}, got {got}"
    raise wrong_input(where, starts + at, line, what)
