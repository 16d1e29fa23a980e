"""Numbers: integers are int, floats are float, numeric is Decimal.

A numeric's display scale is the Decimal's exponent, so the exponent is never above 0; there is no
negative zero.
Source: src/backend/utils/adt/numutils.c, numeric.c, float.c.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from ctypes import c_float
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from typing import Final

import numpy as np

from pgsluice.row_filter.values.value_type import (
    NotReadable,
    SqlError,
    ValueType,
    invalid,
    not_exact,
)
from pgsluice.sql import SqlRefused
from pgsluice.types.binary_to_text.floats import format_float4, format_float8

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


#: A number with more digits is out of range; Python converts no more than 4,300.
_MOST_DIGITS = 30


def integer_reader(bits: int, name: str) -> Callable[[str], str]:
    pattern = re.compile(
        r"\s*([+-]?)(0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|[0-9](?:_?[0-9])*)"
        r"\s*",
        re.ASCII,
    )

    def read(text: str) -> str:
        match = pattern.fullmatch(text)
        if match is None:
            raise invalid(name, text)
        digits = match[2].replace("_", "")
        is_decimal = digits.isdigit()
        digits = digits.lstrip("0")[:_MOST_DIGITS] or "0" if is_decimal else digits
        value = int(match[1] + digits, 10 if is_decimal else 0)
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise SqlRefused(f'value "{text}" is out of range for type {name}')
        return str(value)

    return read


def read_oid(text: str) -> str:
    """As C's strtoul with base 0: ``0x1f`` is hexadecimal, ``017`` octal."""
    match = _OID.fullmatch(text)
    if match is None:
        raise invalid("oid", text)
    decimal = int((match[4] or "0")[:_MOST_DIGITS])
    value = int(match[2], 16) if match[2] else int(match[3], 8) if match[3] else decimal
    value = -value if match[1] == "-" else value
    if not -(1 << 31) <= value < 1 << 32:
        raise SqlRefused(f'value "{text}" is out of range for type oid')
    return str(value % (1 << 32))


_OID = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))\s*", re.ASCII)
_DECIMAL = re.compile(
    r"\s*([+-]?)((?:[0-9](?:_?[0-9])*)?(?:\.(?:[0-9](?:_?[0-9])*)?)?)(?:[eE]([+-]?[0-9](?:_?[0-9])*))?\s*",
    re.ASCII,
)
_SPECIAL = {"nan": "NaN", "infinity": "Infinity", "inf": "Infinity"}


def _special(text: str) -> str | None:
    word = text.strip(" \t\n\r\f\v").lower()
    sign = word[:1] if word[:1] in ("+", "-") else ""
    value = _SPECIAL.get(word[len(sign) :])
    if value == "NaN" and sign:
        return None
    return None if value is None else ("-" + value if sign == "-" else value)


def read_numeric(text: str) -> str:
    """All digits are kept: ``1.50`` stays ``1.50``, ``1e3`` becomes 1000."""
    if special := _special(text):
        return special
    match = _DECIMAL.fullmatch(text)
    if match is None or not re.search(r"[0-9]", match[2]):
        stripped = text.strip()
        if re.fullmatch(r"[+-]?0[xXoObB][0-9a-fA-F_]+", stripped):
            whole = stripped.lstrip("+-").replace("_", "")
            return format(Decimal(int(stripped[: -len(whole)] + whole, 0)), "f")
        raise invalid("numeric", text)
    number = match[1] + match[2].replace("_", "")
    exponent = int((match[3] or "0").replace("_", "")[:_MOST_DIGITS])
    if abs(exponent) > 131072 + 16383:
        raise SqlRefused("value overflows numeric format")
    value = Decimal(f"{number}e{exponent}")
    shown = format(value, "f")
    whole, _, fraction = shown.partition(".")
    if len(whole.lstrip("-0")) > 131072 or len(fraction) > 16383:
        raise SqlRefused("value overflows numeric format")
    return shown[1:] if shown.startswith("-") and not value else shown


def float_reader(bits: int, name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if special := _special(text):
            return special
        stripped = text.strip(" \t\n\r\f\v")
        if stripped.lower() in ("-nan", "+nan"):
            return "NaN"
        if not re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", stripped):
            if re.match(r"[+-]?0[xX]", stripped):
                raise not_exact(f"a hexadecimal constant of type {name}", "The C library reads it.")
            raise invalid(name, text)
        value = float(stripped)
        has_digits = re.search(r"[1-9]", stripped.lower().split("e")[0]) is not None
        shown = _shortest(value, bits)
        if shown in ("Infinity", "-Infinity") or (has_digits and float(shown) == 0):
            raise SqlRefused(f'"{stripped}" is out of range for type {name}')
        return shown

    return read


def _shortest(value: float, bits: int) -> str:
    """The shortest text that reads back the same (extra_float_digits = 1)."""
    if bits == 64:
        return format_float8(value)
    with np.errstate(over="ignore", under="ignore"):
        return format_float4(float(np.float32(value)))
