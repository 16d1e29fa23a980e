"""Ranges.

Source: src/backend/utils/adt/rangetypes.c (``range_parse``, ``range_deparse``, ``make_range``, the
canonical functions).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.value_type import NotReadable, SqlError, Value, ValueType, same
from pgsluice.sql import SqlRefused
from pgsluice.types.binary_to_text.datetimes import print_date

#: The bounds of these subtypes are followed by a next value: the type's name in errors, its end.
_DISCRETE: Final = {
    "int4": ("integer", 2**31),
    "int8": ("bigint", 2**63),
    "date": ("date", m.DATE_END),
}


class Range(NamedTuple):
    """A range; None is an infinite bound."""

    is_empty: bool
    lower: Value = None
    upper: Value = None
    is_lower_inclusive: bool = False
    is_upper_inclusive: bool = False


def range_type(name: str, subtype: ValueType) -> ValueType:
    """How values of a range type are read and ordered, by the type of its bounds."""
    key = subtype.key or same
    return ValueType(
        name,
        lambda text: parse_range(text, subtype.parse),
        lambda value: range_key(value, key),
    )


def parse_range(text: str, parse: Callable[[str], Value]) -> Range:
    """Read a range's text as range_out() prints it; ``parse`` makes a bound of its text."""
    parts = _parts(text, lambda detail: NotReadable("range"))
    if parts is None:
        return Range(True)
    inclusive, *bounds = parts
    lower, upper = (None if bound is None else parse(bound) for bound in bounds)
    return Range(False, lower, upper, inclusive[0] == "[", inclusive[1] == "]")


def lower_key(value: Range, key: Callable[[Value], Any]) -> tuple[Any, ...]:
    """The order of lower bounds, comparable with upper ones."""
    if value.lower is None:
        return (-1,)
    return 0, key(value.lower), 0 if value.is_lower_inclusive else 1


def upper_key(value: Range, key: Callable[[Value], Any]) -> tuple[Any, ...]:
    """The order of upper bounds, comparable with lower ones."""
    if value.upper is None:
        return (1,)
    return 0, key(value.upper), 0 if value.is_upper_inclusive else -1


def range_key(value: Range, key: Callable[[Value], Any]) -> tuple[Any, ...]:
    """The order of ranges: empty first, then by lower and upper bound."""
    if value.is_empty:
        return (0,)
    return 1, lower_key(value, key), upper_key(value, key)


def make_range(lower: Value, upper: Value, inclusive: str, subtype: ValueType) -> Range:
    """A range with its canonical bounds.

    Args:
        inclusive: ``[)``, ``(]``, ``[]`` or ``()``.

    Raises:
        SqlError: the bounds are in the wrong order, or a bound has no next value.
    """
    key = subtype.key or same
    has_lower = inclusive[0] == "[" and lower is not None
    has_upper = inclusive[1] == "]" and upper is not None
    if lower is not None and upper is not None:
        low, high = key(lower), key(upper)
        if low > high:
            raise SqlError(
                "data_exception",
                "range lower bound must be less than or equal to range upper bound",
            )
        if low == high and not (has_lower and has_upper):
            return Range(True)
    if subtype.name not in _DISCRETE:
        return Range(False, lower, upper, has_lower, has_upper)
    if lower is not None and not has_lower:
        lower, has_lower = _next(lower, subtype.name)
    if upper is not None and has_upper:
        upper, is_next = _next(upper, subtype.name)
        has_upper = not is_next
    if None not in (lower, upper) and lower == upper and not (has_lower and has_upper):
        return Range(True)
    return Range(False, lower, upper, has_lower, has_upper)


def _next(value: int, name: str) -> tuple[int, bool]:
    """The value after a bound, and whether there is one: infinite dates have none."""
    if name == "date" and value in (m.DATE_INFINITY, m.DATE_MINUS_INFINITY):
        return value, False
    shown, end = _DISCRETE[name]
    if value + 1 >= end:
        condition = "datetime_field_overflow" if name == "date" else "numeric_value_out_of_range"
        raise SqlError(condition, f"{shown} out of range")
    return value + 1, True


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
    parts = _parts(
        text, lambda detail: SqlRefused(f'malformed range literal: "{text}"', detail=detail)
    )
    if parts is None:
        return "empty"
    inclusive, *given = parts
    texts = [None if bound is None else read(bound) for bound in given]
    values = [None if bound is None else subtype.parse(bound) for bound in texts]
    try:
        made = make_range(values[0], values[1], inclusive, subtype)
    except SqlError as error:
        raise SqlRefused(error.message) from None
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


def _parts(text: str, bad: Callable[[str], Exception]) -> tuple[str, str | None, str | None] | None:
    """The brackets and the bounds' texts; None: the range is empty.

    Args:
        bad: the error with a detail of PostgreSQL's.
    """
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


def _bound(text: str, start: int, bad: Callable[[str], Exception]) -> tuple[str | None, int]:
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
