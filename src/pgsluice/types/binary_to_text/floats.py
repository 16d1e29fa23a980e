"""float4 and float8 as PostgreSQL 12 and later print them.

They print the fewest digits that read back to the same value, and of these the nearest. Python's
``repr`` does the same, with one exception: PostgreSQL does not use a decimal exactly half-way
between two floats, since not every parser rounds it to even: it prints 9.999999999999999e+22
for 1e23.
Source: src/common/d2s.c, f2s.c.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np

from pgsluice.types.binary_to_text.cursor import Misshapen

Neighbour = Callable[[float, float], float]
"""The next value of the type after one number, in the direction of another."""

_DOUBLE_DIGITS = 15
"""Exponential notation is used from this exponent on, and below -4: 1e+15."""
_SINGLE_DIGITS = 6


def print_float8(value: bytes) -> str:
    """Text of a value, as PostgreSQL's float8out prints it, from its binary form."""
    if len(value) != 8:
        raise Misshapen
    return format_float8(struct.unpack(">d", value)[0])


def print_float4(value: bytes) -> str:
    """Text of a value, as PostgreSQL's float4out prints it, from its binary form."""
    if len(value) != 4:
        raise Misshapen
    return format_float4(struct.unpack(">f", value)[0])


def format_float8(number: float) -> str:
    """The text that PostgreSQL prints of a float8."""
    special = _special(number)
    if special is not None:
        return special
    digits = _inside(repr(number), number, math.nextafter)
    return _lay_out(digits, _DOUBLE_DIGITS)


def format_float4(number: float) -> str:
    """The text that PostgreSQL prints of a float4, whose value ``number`` has."""
    special = _special(number)
    if special is not None:
        return special
    digits = _inside(str(np.float32(number)), number, _next_single)
    return _lay_out(digits, _SINGLE_DIGITS)


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "-0" if math.copysign(1, number) < 0 else "0"
    return None


def _next_single(number: float, towards: float) -> float:
    with np.errstate(over="ignore"):  # the neighbour of the largest value is infinity
        return float(np.nextafter(np.float32(number), np.float32(towards)))


def _inside(shortest: str, number: float, neighbour: Neighbour) -> str:
    """The shortest text, or the next longer text if the shortest is half-way to a neighbour."""
    exact = Fraction(number)
    written = Fraction(shortest)
    if written == exact:
        return shortest
    other = neighbour(number, math.inf if written > exact else -math.inf)
    # The upper neighbour of the largest finite value is computed as if exponents had no limit.
    is_last = math.isinf(other)
    gap = exact - Fraction(neighbour(number, 0.0)) if is_last else Fraction(other) - exact
    if abs(written - exact) * 2 != abs(gap):
        return shortest
    longer = len(Decimal(shortest).as_tuple().digits)
    while abs(Fraction(f"{number:.{longer}e}") - exact) * 2 >= abs(gap):
        longer += 1
    return f"{number:.{longer}e}"


def _lay_out(shortest: str, most: int) -> str:
    """The digits in fixed or exponential notation, chosen as ``%g`` with ``most`` digits does."""
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent  # digits before the decimal point
    minus = "-" if sign else ""
    scientific = point - 1
    if not -4 <= scientific < most:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{'-' if scientific < 0 else '+'}{abs(scientific):02}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    if exponent >= 0:
        return f"{minus}{text}{'0' * exponent}"
    return f"{minus}{text[:point]}.{text[point:]}"
