"""Ranges.

Source: src/backend/utils/adt/rangetypes.c (``range_in``, ``make_range``, the canonical functions).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.value_type import NotReadable, SqlError, Value, ValueType

_RANGE: Final = re.compile(
    r'([\[(])(?:"((?:[^"\\]|\\.|"")*)"|([^",\])(]*)),(?:"((?:[^"\\]|\\.|"")*)"|([^",\])(]*))([\])])',
    re.DOTALL,
)
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
    """The range type of a subtype."""
    key = subtype.key or (lambda value: value)
    return ValueType(
        name,
        lambda text: parse_range(text, subtype.parse),
        lambda value: range_key(value, key),
    )


def parse_range(text: str, parse: Callable[[str], Value]) -> Range:
    """Parse what range_out prints."""
    if text == "empty":
        return Range(True)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise NotReadable("range")

    def bound(quoted: str | None, bare: str | None) -> Value:
        if quoted is not None:
            return parse(re.sub(r'\\(.)|"(")', r"\1\2", quoted, flags=re.DOTALL))
        return parse(bare) if bare else None

    lower, upper = bound(match[2], match[3]), bound(match[4], match[5])
    return Range(False, lower, upper, match[1] == "[", match[6] == "]")


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
    key = subtype.key or (lambda value: value)
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
