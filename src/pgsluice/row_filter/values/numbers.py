"""Numbers: integers are int, floats are float, numeric is Decimal.

A numeric's display scale is the Decimal's exponent, so the exponent is never above 0; there is no
negative zero.
Source: src/backend/utils/adt/numeric.c, float.c.
"""

from __future__ import annotations

import math
from ctypes import c_float
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from typing import Final

import numpy as np

from pgsluice.row_filter.values.value_type import NotReadable, SqlError, ValueType

EXACT: Final = Context(prec=700_000, rounding=ROUND_HALF_UP, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""Enough digits for every sum and product of two numerics (131072 before, 16383 after)."""

INTEGERS: Final = ("int2", "int4", "int8")
INTEGER_PAIRS: Final = tuple(
    (left if left == right else left + right[3:], left, right, max(left, right))
    for left in INTEGERS
    for right in INTEGERS
)
"""Of two integer types: how the names of their functions begin, the types, and the wider one."""

MAX_SCALE: Final = 16383
MAX_DIGITS_BEFORE: Final = 131072
NAN: Final = Decimal("NaN")


def parse_bool(text: str) -> bool:
    """Parse ``t`` or ``f``."""
    if text not in ("t", "f", "true", "false"):
        raise NotReadable("bool")
    return text[0] == "t"


def parse_integer(text: str) -> int:
    """Parse any integer type, or oid."""
    try:
        return int(text)
    except ValueError:
        raise NotReadable("integer") from None


def parse_float8(text: str) -> float:
    """Parse a float8, NaN and infinities included."""
    try:
        return float(text)
    except ValueError:
        raise NotReadable("float8") from None


def parse_float4(text: str) -> float:
    """Parse a float4."""
    return nearest_float4(parse_float8(text))


def parse_numeric(text: str) -> Decimal:
    """Parse a numeric with its display scale."""
    try:
        return plain(Decimal(text))
    except ArithmeticError:
        raise NotReadable("numeric") from None


def plain(number: Decimal) -> Decimal:
    """Without a positive exponent, a negative zero or a signed NaN."""
    if not number.is_finite():
        return NAN if number.is_nan() else number
    if not number:
        number = abs(number)
    exponent = number.as_tuple().exponent
    return number.quantize(Decimal(1), context=EXACT) if int(exponent) > 0 else number


def scale_of(number: Decimal) -> int:
    """The display scale of a finite numeric."""
    return -int(number.as_tuple().exponent)


def with_scale(number: Decimal, scale: int, rounding: str = ROUND_HALF_UP) -> Decimal:
    """Round to some digits after the point, half away from zero unless said otherwise."""
    return plain(number.quantize(Decimal((0, (1,), -scale)), rounding, EXACT))


def checked(number: Decimal) -> Decimal:
    """A result within numeric's range, or the server's error."""
    if number.is_finite() and number and number.adjusted() >= MAX_DIGITS_BEFORE:
        raise SqlError("numeric_value_out_of_range", "value overflows numeric format")
    return plain(number)


def nearest_float4(number: float) -> float:
    """Round a double to float4; an overflow gives an infinity."""
    return c_float(number).value


def exact_float4(number: Decimal | int) -> float:
    """The float4 nearest to a number, without rounding it to a double first."""
    first = nearest_float4(float(number))
    if math.isinf(first) or first == number:
        return first
    near = np.float32(first)
    around = [
        np.nextafter(near, np.float32(-np.inf)),
        near,
        np.nextafter(near, np.float32(np.inf)),
    ]
    wanted = Decimal(number)

    def distance(candidate: np.float32) -> tuple[Decimal, int]:
        if math.isinf(candidate):
            return Decimal("Infinity"), 0
        is_odd = int(candidate.view(np.uint32)) & 1
        return abs(EXACT.subtract(Decimal(float(candidate)), wanted)), is_odd

    return float(min(around, key=distance))


def float_key(number: float) -> tuple[bool, float]:
    """The order of floats: NaN equals itself and is above all."""
    return (True, 0.0) if number != number else (False, number)


def numeric_key(number: Decimal) -> tuple[bool, Decimal]:
    """The order of numerics: NaN equals itself and is above Infinity."""
    return (True, Decimal(0)) if number.is_nan() else (False, number)


NUMBERS: Final = (
    ValueType("bool", parse_bool),
    *(ValueType(name, parse_integer) for name in (*INTEGERS, "oid", "xid", "xid8")),
    ValueType("float4", parse_float4, float_key),
    ValueType("float8", parse_float8, float_key),
    ValueType("numeric", parse_numeric, numeric_key),
)
