"""Turn range constants into their canonical output.

Source: src/backend/utils/adt/rangetypes.c (range_parse, range_deparse).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final

from pgsluice.row_filter.literals.bad_literals import BadLiteral
from pgsluice.row_filter.values import SqlError, Value, ValueType
from pgsluice.row_filter.values.ranges import make_range
from pgsluice.types.binary_to_text.datetimes import print_date

_SPACES: Final = " \t\n\r\v\f"
#: A bound: characters, with quoted and escaped ones, up to a comma or the end of the range.
_BOUND: Final = re.compile(r'((?:[^,)\]"\\]|\\.|"(?:[^"\\]|\\.|"")*")*)', re.DOTALL)
_PIECE: Final = re.compile(r'\\(.)|""|"', re.DOTALL)
_SPECIAL: Final = re.compile(r'["\\(),\[\]\s]')


def read_range(text: str, subtype: ValueType, read: Callable[[str], str]) -> str:
    """``[1,5)``, ``empty``, ``(,)``.

    Args:
        read: gives the canonical output of a bound.
    """
    parts = _parts(text)
    if parts is None:
        return "empty"
    inclusive, *bounds = parts
    texts = [None if bound is None else read(bound) for bound in bounds]
    values = [None if bound is None else subtype.parse(bound) for bound in texts]
    try:
        made = make_range(values[0], values[1], inclusive or "", subtype)
    except SqlError as error:
        raise BadLiteral(error.message) from None
    if made.is_empty:
        return "empty"
    lower, upper = (
        _printed(before, value, after, subtype)
        for before, value, after in zip(texts, values, (made.lower, made.upper), strict=True)
    )
    return f"{'(['[made.is_lower_inclusive]}{lower},{upper}{')]'[made.is_upper_inclusive]}"


def _printed(text: str | None, value: Value, canonical: Value, subtype: ValueType) -> str:
    """A bound that the canonical form may have moved by one."""
    if text is None:
        return ""
    if value != canonical:
        is_date = subtype.name == "date"
        text = print_date(struct.pack(">i", canonical)) if is_date else str(canonical)
    if text and not _SPECIAL.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'


def _parts(text: str) -> tuple[str | None, str | None, str | None] | None:
    """The brackets and the bounds' texts; None: the range is empty."""

    def bad(detail: str) -> BadLiteral:
        return BadLiteral(f'malformed range literal: "{text}"', detail=detail)

    inner = text.strip(_SPACES)
    if inner[:5].lower() == "empty":
        if inner[5:]:
            raise bad('Junk after "empty" key word.')
        return None
    if inner[:1] not in ("[", "("):
        raise bad("Missing left parenthesis or bracket.")
    lower, index = _bound(inner, 1, bad)
    if inner[index] != ",":
        raise bad("Missing comma after lower bound.")
    upper, index = _bound(inner, index + 1, bad)
    if inner[index] == ",":
        raise bad("Too many commas.")
    if inner[index + 1 :]:
        raise bad("Junk after right parenthesis or bracket.")
    return inner[0] + inner[index], lower, upper


def _bound(text: str, start: int, bad: Callable[[str], BadLiteral]) -> tuple[str | None, int]:
    match = _BOUND.match(text, start)
    if match is None or match.end() >= len(text) or text[match.end()] not in ",)]":
        raise bad("Unexpected end of input.")
    if not match[1]:
        return None, match.end()
    return _unquoted(match[1]), match.end()


def _unquoted(text: str) -> str:
    is_quoted, parts, index = False, [], 0
    for piece in _PIECE.finditer(text):
        if piece.start() < index:
            continue
        parts.append(text[index : piece.start()])
        index = piece.end()
        if piece[1] is not None:
            parts.append(piece[1])
        elif piece[0] == '""' and is_quoted:
            parts.append('"')
        elif piece[0] == '"':
            is_quoted = not is_quoted
    return "".join(parts) + text[index:]
