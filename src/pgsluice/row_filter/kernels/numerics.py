"""numeric: arithmetic with the server's scales, rounding, and casts from and to other numbers.

Source: src/backend/utils/adt/numeric.c (``select_div_scale``, ``apply_typmod``), float.c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Decimal
from typing import Final

from pgsluice.row_filter.kernels.arithmetic import (
    division_by_zero,
    integer,
    out_of_range,
    rounded,
)
from pgsluice.row_filter.kernels.kernel import kernel, register
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


@kernel("numeric_add(numeric,numeric)")
def _add(a: Decimal, b: Decimal) -> Decimal:
    return checked(EXACT.add(a, b))


@kernel("numeric_sub(numeric,numeric)")
def _subtract(a: Decimal, b: Decimal) -> Decimal:
    return checked(EXACT.subtract(a, b))


@kernel("numeric_mul(numeric,numeric)")
def _multiply(a: Decimal, b: Decimal) -> Decimal:
    return _limited(EXACT.multiply(a, b))


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


@kernel("numeric_mod(numeric,numeric)", "mod(numeric,numeric)")
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


@kernel("div(numeric,numeric)", "numeric_div_trunc(numeric,numeric)")
def _whole_quotient(a: Decimal, b: Decimal) -> Decimal:
    special = _special_quotient(a, b)
    if special is not None:
        return special
    return checked(EXACT.divide_int(a, b).quantize(Decimal(1), context=EXACT))


@kernel("numeric_uminus(numeric)")
def _negate(number: Decimal) -> Decimal:
    return plain(number.copy_negate())


@kernel("numeric_uplus(numeric)")
def _same(number: Decimal) -> Decimal:
    return number


@kernel("numeric_abs(numeric)", "abs(numeric)")
def _absolute(number: Decimal) -> Decimal:
    return plain(number.copy_abs())


@kernel("sign(numeric)")
def _sign(number: Decimal) -> Decimal:
    if number.is_nan():
        return NAN
    return Decimal((number > 0) - (number < 0))


@kernel("round(numeric,int4)")
def _round(number: Decimal, scale: int) -> Decimal:
    if not number.is_finite():
        return number
    scale = min(max(scale, -131073), MAX_SCALE)
    return checked(_at_scale(number, scale, "ROUND_HALF_UP"))


def _at_scale(number: Decimal, scale: int, rounding: str) -> Decimal:
    if scale >= 0:
        return with_scale(number, scale, rounding)
    return with_scale(number.quantize(Decimal((0, (1,), -scale)), rounding, EXACT), 0)


@kernel("trunc(numeric,int4)")
def _trunc(number: Decimal, scale: int) -> Decimal:
    if not number.is_finite():
        return number
    return _at_scale(number, min(max(scale, -131073), MAX_SCALE), ROUND_DOWN)


def _to_whole(rounding: str) -> Callable[[Decimal], Decimal]:
    def run(number: Decimal) -> Decimal:
        return with_scale(number, 0, rounding) if number.is_finite() else number

    return run


for _name, _rounding in (
    ("round(numeric)", "ROUND_HALF_UP"),
    ("trunc(numeric)", ROUND_DOWN),
    ("floor(numeric)", ROUND_FLOOR),
    ("ceil(numeric)", ROUND_CEILING),
    ("ceiling(numeric)", ROUND_CEILING),
):
    register(_name, _to_whole(_rounding))


@kernel("scale(numeric)")
def _scale(number: Decimal) -> int | None:
    return scale_of(number) if number.is_finite() else None


@kernel("numeric(numeric,int4)")
def _apply_typmod(number: Decimal, typmod: int) -> Decimal:
    if number.is_nan() or typmod < 4:
        return number
    if number.is_infinite():
        raise out_of_range("numeric field overflow")
    precision, scale = typmod - 4 >> 16, ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400
    fitted = _at_scale(number, scale, "ROUND_HALF_UP")
    if fitted and fitted.adjusted() >= precision - scale:
        raise out_of_range("numeric field overflow")
    return fitted


# Casts between the kinds of numbers


def _special_to_integer(number: Decimal, name: str) -> None:
    if number.is_nan():
        raise SqlError("feature_not_supported", f"cannot convert NaN to {_INTEGER_NAMES[name]}")
    if number.is_infinite():
        message = f"cannot convert infinity to {_INTEGER_NAMES[name]}"
        raise SqlError("feature_not_supported", message)


def _numeric_to_integer(name: str) -> Callable[[Decimal], int]:
    def run(number: Decimal) -> int:
        _special_to_integer(number, name)
        return integer(name, int(with_scale(number, 0)))

    return run


def _float_to_integer(name: str) -> Callable[[float], int]:
    def run(number: float) -> int:
        if math.isnan(number) or math.isinf(number):
            raise out_of_range(f"{_INTEGER_NAMES[name]} out of range")
        return integer(name, int(rounded(number)))

    return run


def _float_to_numeric(digits: int) -> Callable[[float], Decimal]:
    def run(number: float) -> Decimal:
        return parse_numeric(f"{number:.{digits}g}")

    return run


@kernel("float8(numeric)")
def _numeric_to_float8(number: Decimal) -> float:
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


def _resized(name: str) -> Callable[[int], int]:
    return lambda number: integer(name, number)


def _register_casts() -> None:
    for name in _INTEGER_NAMES:
        register(f"{name}(numeric)", _numeric_to_integer(name))
        register(f"numeric({name})", Decimal)
        register(f"float8({name})", float)
        register(f"float4({name})", exact_float4)
        for source in ("float4", "float8"):
            register(f"{name}({source})", _float_to_integer(name))
        for source in _INTEGER_NAMES:
            if source != name:
                register(f"{name}({source})", _resized(name))
    register("float8(float4)", float)
    register("numeric(float4)", _float_to_numeric(6))
    register("numeric(float8)", _float_to_numeric(15))


_register_casts()


@kernel("bool(int4)")
def _integer_to_bool(number: int) -> bool:
    return number != 0


@kernel("int4(bool)")
def _bool_to_integer(truth: bool) -> int:
    return int(truth)


@kernel("int8(oid)")
def _oid_to_integer(oid: int) -> int:
    return oid


@kernel("oid(int8)")
def _integer_to_oid(number: int) -> int:
    if not 0 <= number < 2**32:
        raise out_of_range("OID out of range")
    return number
