"""Hexadecimal text of bytea, as PostgreSQL reads it (hex_decode in encode.c)."""

from __future__ import annotations

import re
from typing import Final

_PAIRS: Final = re.compile(r"(?:[ \t\n\r]*[0-9a-fA-F]{2})*[ \t\n\r]*")
_BLANKS: Final = dict.fromkeys(map(ord, " \t\n\r"))


class BadHexadecimal(ValueError):
    """Text that is not hexadecimal.

    Attributes:
        digit: the first character that is no digit; None if a last digit has no second one.
    """

    def __init__(self, digit: str | None) -> None:
        super().__init__(digit)
        self.digit = digit

    def message(self, shown_digit: str | None = None) -> str:
        """The server's message.

        Args:
            shown_digit: the text in place of the digit.
        """
        if self.digit is None:
            return "invalid hexadecimal data: odd number of digits"
        return f'invalid hexadecimal digit: "{shown_digit or self.digit}"'


def hexadecimal_digits(text: str) -> str:
    """The digits without the blanks between pairs; within a pair there may be none.

    Raises:
        BadHexadecimal: as the server refuses it.
    """
    pairs = _PAIRS.match(text)
    assert pairs is not None
    rest = text[pairs.end() :]
    for digit in rest[:2]:
        if digit not in "0123456789abcdefABCDEF":
            raise BadHexadecimal(digit)
    if rest:
        raise BadHexadecimal(None)
    return text.translate(_BLANKS)
