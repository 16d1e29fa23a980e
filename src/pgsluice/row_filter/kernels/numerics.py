"""numeric: arithmetic with the server's scales, rounding, and casts from and to other numbers.

Source: src/backend/utils/adt/numeric.c (``select_div_scale``, ``apply_typmod``), float.c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from functools import partial
from typing import Final

from pgsluice.row_filter.kernels.arithmetic import division_by_zero, integer, out_of_range, rounded
from pgsluice.row_filter.kernels.kernel import kernel, register, register_all
from pgsluice.row_filter.values import SqlError
from pgsluice.row_filter.values.numbers import (
    EXACT,
    MAX_SCALE,
    NAN,
    checked,
    exact_float4,
    nearest_float4,
    parse_numeric,
    plain,
    scale_of,
    with_scale,
)

_MIN_SIGNIFICANT_DIGITS: Final = 16
_DIGITS_A_WORD: Final = 4
_MAX_DISPLAY_SCALE: Final = 1000
_INTEGER_NAMES: Final = {"int2": "smallint", "int4": "integer", "int8": "bigint"}


def _limited(number: Decimal) -> Decimal:
    if number.is_finite() and scale_of(number) > MAX_SCALE:
        number = with_scale(number, MAX_SCALE)
    return checked(number)


@kernel("numeric_div(numeric,numeric)")
def _divide(a: Decimal, b: Decimal) -> Decimal:
    special = _special_quotient(a, b)
    if special is not None:
        return special
    return checked(quotient(a, b, division_scale(a, b)))


def _special_quotient(a: Decimal, b: Decimal) -> Decimal | None:
    """Divide if NaN, infinities or zero are involved; None where both are ordinary numbers."""
    if a.is_nan() or b.is_nan() or (a.is_infinite() and b.is_infinite()):
        return NAN
    if b == 0:
        raise division_by_zero()
    if a.is_infinite():
        return a if b > 0 else -a
    return Decimal(0) if b.is_infinite() else None


def division_scale(a: Decimal, b: Decimal) -> int:
    """The scale of a quotient: at least 16 significant digits, at most 1000."""
    weight_a, first_a = _first_word(a)
    weight_b, first_b = _first_word(b)
    weight = weight_a - weight_b - (first_a <= first_b)
    scale = _MIN_SIGNIFICANT_DIGITS - weight * _DIGITS_A_WORD
    return min(max(scale, scale_of(a), scale_of(b), 0), _MAX_DISPLAY_SCALE)


def _first_word(number: Decimal) -> tuple[int, int]:
    """Weight and value of the first base-10000 digit; 0 and 0 for zero."""
    if not number:
        return 0, 0
    weight = number.adjusted() // _DIGITS_A_WORD
    word = abs(number).scaleb(-weight * _DIGITS_A_WORD, EXACT)
    return weight, int(word)


def quotient(a: Decimal, b: Decimal, scale: int) -> Decimal:
    """Divide ``a`` by ``b``, rounded half away from zero to a scale."""
    scale_a, scale_b = scale_of(a), scale_of(b)
    dividend = int(a.scaleb(scale_a, EXACT)) * 10 ** max(scale + scale_b - scale_a, 0)
    divisor = int(b.scaleb(scale_b, EXACT)) * 10 ** max(scale_a - scale_b - scale, 0)
    whole, rest = divmod(abs(dividend), abs(divisor))
    if 2 * rest >= abs(divisor):
        whole += 1
    if (dividend < 0) != (divisor < 0):
        whole = -whole
    return plain(Decimal(whole).scaleb(-scale, EXACT))


@kernel("numeric_mod(numeric,numeric) mod(numeric,numeric)")
def _modulo(a: Decimal, b: Decimal) -> Decimal:
    if a.is_nan() or b.is_nan():
        return NAN
    if a.is_infinite():
        if b == 0:
            raise division_by_zero()
        return NAN
    if b.is_infinite():
        return a
    if b == 0:
        raise division_by_zero()
    return with_scale(EXACT.remainder(a, b), max(scale_of(a), scale_of(b)))


@kernel("div(numeric,numeric) numeric_div_trunc(numeric,numeric)")
def _whole_quotient(a: Decimal, b: Decimal) -> Decimal:
    special = _special_quotient(a, b)
    if special is not None:
        return special
    return checked(EXACT.divide_int(a, b).quantize(Decimal(1), context=EXACT))


@kernel("sign(numeric)")
def _sign(number: Decimal) -> Decimal:
    return NAN if number.is_nan() else Decimal((number > 0) - (number < 0))


def _to_scale(rounding: str) -> Callable[[Decimal, int], Decimal]:
    def run(number: Decimal, scale: int = 0) -> Decimal:
        if not number.is_finite():
            return number
        return checked(_at_scale(number, min(max(scale, -131073), MAX_SCALE), rounding))

    return run


def _at_scale(number: Decimal, scale: int, rounding: str) -> Decimal:
    if scale >= 0:
        return with_scale(number, scale, rounding)
    return with_scale(number.quantize(Decimal((0, (1,), -scale)), rounding, EXACT), 0)


register_all(
    {
        "numeric_add(numeric,numeric)": lambda a, b: checked(EXACT.add(a, b)),
        "numeric_sub(numeric,numeric)": lambda a, b: checked(EXACT.subtract(a, b)),
        "numeric_mul(numeric,numeric)": lambda a, b: _limited(EXACT.multiply(a, b)),
        "numeric_uminus(numeric)": lambda number: plain(number.copy_negate()),
        "numeric_uplus(numeric)": lambda number: number,
        "numeric_abs(numeric) abs(numeric)": lambda number: plain(number.copy_abs()),
        "round(numeric) round(numeric,int4)": _to_scale(ROUND_HALF_UP),
        "trunc(numeric) trunc(numeric,int4)": _to_scale(ROUND_DOWN),
        "floor(numeric)": _to_scale(ROUND_FLOOR),
        "ceil(numeric) ceiling(numeric)": _to_scale(ROUND_CEILING),
        "scale(numeric)": lambda number: scale_of(number) if number.is_finite() else None,
    }
)


@kernel("numeric(numeric,int4)")
def _apply_typmod(number: Decimal, typmod: int) -> Decimal:
    if number.is_nan() or typmod < 4:
        return number
    if number.is_infinite():
        raise out_of_range("numeric field overflow")
    precision, scale = typmod - 4 >> 16, ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400
    fitted = _at_scale(number, scale, ROUND_HALF_UP)
    if fitted and fitted.adjusted() >= precision - scale:
        raise out_of_range("numeric field overflow")
    return fitted


# Casts between the kinds of numbers


def numeric_to_integer(name: str) -> Callable[[Decimal], int]:
    """The cast of numeric to int2, int4 or int8; it raises the server's errors."""

    def run(number: Decimal) -> int:
        if not number.is_finite():
            shown = "NaN" if number.is_nan() else "infinity"
            message = f"cannot convert {shown} to {_INTEGER_NAMES[name]}"
            raise SqlError("feature_not_supported", message)
        return integer(name, int(with_scale(number, 0)))

    return run


def _float_to_integer(name: str) -> Callable[[float], int]:
    def run(number: float) -> int:
        if math.isnan(number) or math.isinf(number):
            raise out_of_range(f"{_INTEGER_NAMES[name]} out of range")
        return integer(name, int(rounded(number)))

    return run


def _float_to_numeric(digits: int) -> Callable[[float], Decimal]:
    return lambda number: parse_numeric(f"{number:.{digits}g}")


@kernel("float8(numeric)")
def numeric_to_float8(number: Decimal) -> float:
    """The cast of numeric to float8; raises the server's error if it is out of range."""
    result = float(number)
    if number.is_finite() and (math.isinf(result) or (result == 0) != (number == 0)):
        raise out_of_range('"…" is out of range for type double precision')
    return result


@kernel("float4(numeric)")
def _numeric_to_float4(number: Decimal) -> float:
    if not number.is_finite():
        return float(number)
    result = exact_float4(number)
    if math.isinf(result) or (result == 0) != (number == 0):
        raise out_of_range('"…" is out of range for type real')
    return result


@kernel("float4(float8)")
def _float8_to_float4(number: float) -> float:
    result = nearest_float4(number)
    if math.isinf(result) and not math.isinf(number):
        raise out_of_range("value out of range: overflow")
    if result == 0 and number != 0:
        raise out_of_range("value out of range: underflow")
    return result


@kernel("oid(int8)")
def _integer_to_oid(number: int) -> int:
    if not 0 <= number < 2**32:
        raise out_of_range("OID out of range")
    return number


def _register_casts() -> None:
    for name in _INTEGER_NAMES:
        register(f"{name}(numeric)", numeric_to_integer(name))
        register(f"numeric({name})", Decimal)
        register(f"float8({name})", float)
        register(f"float4({name})", exact_float4)
        for source in ("float4", "float8"):
            register(f"{name}({source})", _float_to_integer(name))
        for source in _INTEGER_NAMES:
            if source != name:
                register(f"{name}({source})", partial(integer, name))
    register_all(
        {
            "float8(float4)": float,
            "numeric(float4)": _float_to_numeric(6),
            "numeric(float8)": _float_to_numeric(15),
            "bool(int4)": bool,
            "int4(bool)": int,
            "int8(oid)": int,
        }
    )


_register_casts()
