"""Messages as text: what psql prints of ``pg_logical_slot_peek_binary_changes``.

Aligned or not, with borders, expanded, as CSV; with the columns lsn and xid or without; or
bare hexadecimal, one message a line. Around the rows only what psql itself prints is passed
over: everything else is an error, since it could be a row that was damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pgsluice.cli.decode.follow import Follower, Raw, Seen, wrong_input
from pgsluice.lsn import Lsn

_RULE = "│".encode()  # psql's linestyle unicode; three bytes, like what stands in for it
_COLUMNS = (
    rb'[\s|"]*(?:([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})[\s|,;"]+)?'  # lsn
    rb'(?:([0-9]*)[\s|,;"]+)?'  # xid
)
_ROW = re.compile(_COLUMNS + rb'(?:data[\s|,]+)?"?\\+x([^\s|,;"]*)[\s|,;"]*\Z')
_BARE = re.compile(_COLUMNS + rb"((?:[0-9A-Fa-f]{2})+)\s*\Z")
_FIELD = re.compile(rb"[\s|]*(lsn|xid)[\s|,]+(\S+?)[\s|]*\Z")
_DECORATION = re.compile(
    r"[\s|+─┼│═╪┌┐└┘├┤┬┴-]*|\(\d+ \w+\)|[-\[( ─+|]*RECORD \d+[\])─+| -]*|Time: .*|"
    r'[\s|]*(lsn|location|xid|data|[A-Z]{2,}|[\s|,;"])+'
)
_NOT_HEX = re.compile(rb"[^0-9A-Fa-f]")


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
    fields: dict[bytes, bytes] = {}
    for number, line in enumerate(stream, start=1):
        begins, offset = offset, offset + len(line)
        text = line.replace(_RULE, b"  |").rstrip(b"\r\n")
        row = _ROW.match(text) or _BARE.match(text)
        if row is not None:
            lsn, xid, digits = row.groups()
            lsn, xid = lsn or fields.pop(b"lsn", None), xid or fields.pop(b"xid", None)
            starts = begins + row.start(3)
            raw = Raw(
                _unhex(digits, where, starts, number),
                starts,
                2,
                where,
                number,
                None if lsn is None else Lsn.parse(lsn.decode()),
                int(xid) if xid else None,
            )
            yield follower.take(raw)
        elif field := _FIELD.match(text):
            fields[field[1]] = field[2]
        elif not _DECORATION.fullmatch(line.decode(errors="replace").strip()):
            found = len(text) - len(text.lstrip())
            what = "expected a row as psql prints it, with a bytea in hexadecimal (\\x…)"
            error = wrong_input(where, begins + found, number, what)
            error.hint = (
                "psql -At prints rows plainly; SET bytea_output = 'hex'; or name the --format"
            )
            raise error


def _unhex(digits: bytes, where: str, starts: int, line: int) -> bytes:
    """The bytes; a digit that is none, or missing, is an error that names it."""
    other = _NOT_HEX.search(digits)
    if other is None and len(digits) % 2 == 0:
        return bytes.fromhex(digits.decode())
    at = len(digits) if other is None else other.start()
    got = "the end" if other is None else "another character"
    what = f"expected a hexadecimal digit of the message's byte {at // 2}, got {got}"
    raise wrong_input(where, starts + at, line, what)
