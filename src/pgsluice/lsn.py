"""Log sequence numbers: positions in PostgreSQL's write-ahead log.

An :class:`Lsn` is an ``int``, so it compares, sorts and travels in Arrow and JSON as a
signed 64-bit number, and prints as PostgreSQL prints it: ``0/16B3748``.
Source: the manual, section "pg_lsn Type".
"""

from __future__ import annotations

import re

_TEXT = re.compile(r"\A([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")
_MAX = 2**63 - 1


class Lsn(int):
    """A position in the WAL, in bytes from its beginning.

    Raises:
        ValueError: the number is negative or does not fit a signed 64-bit integer.
    """

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Lsn:
        if not 0 <= value <= _MAX:
            raise ValueError(f"an LSN is between 0 and 2^63 - 1, not {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read PostgreSQL's text form, e.g. ``0/16B3748``; raises ValueError for any other text."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not an LSN such as 0/16B3748")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec) if spec in ("", "s") else int.__format__(self, spec)
