"""Text, bytes, bits, and types whose printed form has their order.

Text is str: its order by code points is the order of UTF-8's bytes, which is the C collation's.
``"char"`` is its byte's number, pg_lsn its integer; uuid and macaddr stay as they are printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pgsluice.row_filter.values.value_type import NotReadable, ValueType, same

_ESCAPE: Final = re.compile(rb"\\(\\|[0-3][0-7]{2})")


def parse_bytea(text: str) -> bytes:
    """Parse bytea: the hex form, or the escape form (bytea_output = escape)."""
    try:
        if text.startswith("\\x"):
            return bytes.fromhex(text[2:])
        raw = text.encode("utf-8")
    except ValueError:
        raise NotReadable("bytea") from None
    return without_escapes(raw)


def without_escapes(data: bytes) -> bytes:
    """The bytes that bytea's escape form means."""
    return _ESCAPE.sub(lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 8)]), data)


def is_octal(data: bytes) -> bool:
    """Whether a text is the octal form of a ``"char"``, which only 16 and later read as a byte."""
    return re.fullmatch(rb"\\[0-7]{3}", data) is not None


def parse_char(text: str) -> int:
    """Parse ``"char"``: one byte; a byte above 127 prints in octal, zero as nothing."""
    raw = text.encode("utf-8")
    if not raw:
        return 0
    if len(raw) == 4 and raw[:1] == b"\\":
        return int(raw[1:], 8)
    return raw[0]


def parse_lsn(text: str) -> int:
    """Parse ``16/B374D848``."""
    try:
        high, low = text.split("/")
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise NotReadable("pg_lsn") from None


def _of_form(name: str, form: str) -> Callable[[str], str]:
    """Parse a type whose values stay as they are printed."""
    pattern = re.compile(form)

    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise NotReadable(name)
        return text

    return parse


_parse_bits: Final = _of_form("bit", "[01]*")
_parse_macaddr: Final = _of_form("macaddr", "[0-9a-f]{2}(:[0-9a-f]{2}){5,7}")


def without_blanks(text: str) -> str:
    """A bpchar without the trailing blanks, which do not count in comparisons."""
    return text.rstrip(" ")


STRINGS: Final = (
    ValueType("text", same, is_collatable=True),
    ValueType("varchar", same, is_collatable=True),
    ValueType("bpchar", same, without_blanks, is_collatable=True),
    ValueType("name", same, is_collatable=True),
    ValueType("json", same, None),
    ValueType("xml", same, None),
    ValueType("char", parse_char),
    ValueType("bytea", parse_bytea),
    ValueType("uuid", _of_form("uuid", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")),
    ValueType("macaddr", _parse_macaddr),
    ValueType("macaddr8", _parse_macaddr),
    ValueType("pg_lsn", parse_lsn),
    ValueType("bit", _parse_bits),
    ValueType("varbit", _parse_bits),
)


_PAIRS: Final = re.compile(r"(?:[ \t\n\r]*[0-9a-fA-F]{2})*[ \t\n\r]*")
_BLANKS: Final = dict.fromkeys(map(ord, " \t\n\r"))


def hexadecimal_digits(text: str, shown_digit: str | None = None) -> str:
    """The digits without the blanks between pairs; within a pair there may be none.

    Args:
        shown_digit: the text in an error in place of a wrong digit.

    Raises:
        ValueError: with the server's message.
    """
    pairs = _PAIRS.match(text)
    assert pairs is not None
    rest = text[pairs.end() :]
    for digit in rest[:2]:
        if digit not in "0123456789abcdefABCDEF":
            raise ValueError(f'invalid hexadecimal digit: "{shown_digit or digit}"')
    if rest:
        raise ValueError("invalid hexadecimal data: odd number of digits")
    return text.translate(_BLANKS)
