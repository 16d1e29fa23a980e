"""Arithmetic: + - * / %, other functions of numbers, and casts between numeric types.

Source: src/backend/utils/adt/int.c, int8.c, float.c, numeric.c.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final

from pgsluice.row_filter.kernels.kernel import kernel, register, register_all
from pgsluice.row_filter.values import SqlError
from pgsluice.row_filter.values.numbers import INTEGER_PAIRS, nearest_float4
from pgsluice.row_filter.values.value_type import same

_RANGES: Final = {
    "int2": (range(-(2**15), 2**15), "smallint out of range"),
    "int4": (range(-(2**31), 2**31), "integer out of range"),
    "int8": (range(-(2**63), 2**63), "bigint out of range"),
}


def out_of_range(message: str) -> SqlError:
    """PostgreSQL's error for a number that its type cannot hold (SQLSTATE 22003)."""
    return SqlError("numeric_value_out_of_range", message)


def division_by_zero() -> SqlError:
    """PostgreSQL's error for a division by zero (SQLSTATE 22012)."""
    return SqlError("division_by_zero", "division by zero")


def integer(type_name: str, number: int) -> int:
    """A result that fits its type, or the server's error."""
    limits, message = _RANGES[type_name]
    if number not in limits:
        raise out_of_range(message)
    return number


def _checked(type_name: str, compute: Callable[..., int]) -> Callable[..., int]:
    limits, message = _RANGES[type_name]
    low, high = limits.start, limits.stop - 1

    def run(*numbers: int) -> int:
        number = compute(*numbers)
        if low <= number <= high:
            return number
        raise out_of_range(message)

    return run


def truncated_division(a: int, b: int) -> int:
    """The quotient of two integers, rounded towards zero as in C; the server's error for 0."""
    if b == 0:
        raise division_by_zero()
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder(a: int, b: int) -> int:
    """The remainder of two integers, with the dividend's sign; the server's error for 0."""
    if b == 0:
        raise division_by_zero()
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def _register_integers() -> None:
    for prefix, left, right, result in INTEGER_PAIRS:
        for name, compute in (
            ("pl", operator.add),
            ("mi", operator.sub),
            ("mul", operator.mul),
            ("div", truncated_division),
        ):
            register(f"{prefix}{name}({left},{right})", _checked(result, compute))
    for name in _RANGES:
        both = f"({name},{name})"
        register(f"{name}mod{both} mod{both}", remainder)
        register(f"{name}and{both}", operator.and_)
        register(f"{name}or{both}", operator.or_)
        register(f"{name}xor{both}", operator.xor)
        register(f"{name}not({name})", operator.invert)
        register(f"{name}shl({name},int4)", _shift(name, operator.lshift))
        register(f"{name}shr({name},int4)", _shift(name, operator.rshift))
        register(f"{name}up({name})", operator.pos)
        register(f"{name}um({name})", _checked(name, operator.neg))
        register(f"{name}abs({name}) abs({name})", _checked(name, abs))
    for name in ("int4", "int8"):
        register(f"gcd({name},{name})", _checked(name, math.gcd))
        register(f"lcm({name},{name})", _checked(name, math.lcm))


def _shift(name: str, shift: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """The effective shift: for a count below zero or beyond the width, processors use its last bits
    (x86-64, ARM)."""
    size = 2 * _RANGES[name][0].stop
    counts = 63 if name == "int8" else 31

    def run(number: int, by: int) -> int:
        bits = shift(number, by & counts) % size
        return bits - size if bits >= size // 2 else bits

    return run


Rounding = Callable[[float], float]
Arithmetic = Callable[[float, float], float]


def _floating(compute: Arithmetic, fit: Rounding, *, may_vanish: bool = False) -> Arithmetic:
    """Arithmetic of floats.

    Args:
        fit: rounds to the result's type.
        may_vanish: operands other than zero can have a result that is rounded to zero.
    """

    def run(a: float, b: float) -> float:
        result = fit(compute(a, b))
        if math.isinf(result) and not math.isinf(a) and not math.isinf(b):
            raise out_of_range("value out of range: overflow")
        if may_vanish and result == 0.0 and a != 0.0 and b != 0.0 and not math.isinf(b):
            raise out_of_range("value out of range: underflow")
        return result

    return run


def _quotient(a: float, b: float) -> float:
    if b == 0.0 and not math.isnan(a):
        raise division_by_zero()
    return a / b if b else a


def _register_floats() -> None:
    for prefix, left, right, fit in (
        ("float4", "float4", "float4", nearest_float4),
        ("float8", "float8", "float8", same),
        ("float48", "float4", "float8", same),
        ("float84", "float8", "float4", same),
    ):
        both = f"({left},{right})"
        register(f"{prefix}pl{both}", _floating(operator.add, fit))
        register(f"{prefix}mi{both}", _floating(operator.sub, fit))
        register(f"{prefix}mul{both}", _floating(operator.mul, fit, may_vanish=True))
        register(f"{prefix}div{both}", _floating(_quotient, fit, may_vanish=True))
    for name in ("float4", "float8"):
        register(f"{name}um({name})", operator.neg)
        register(f"{name}up({name})", operator.pos)
        register(f"{name}abs({name}) abs({name})", abs)


def _to_whole(compute: Callable[[float], int]) -> Rounding:
    def run(number: float) -> float:
        if math.isnan(number) or math.isinf(number) or abs(number) >= 2**53:
            return number
        return math.copysign(float(compute(number)), number)

    return run


rounded = _to_whole(round)
"""Round to the nearest integer, ties to even, as C's rint does."""

register_all(
    {
        "round(float8) dround(float8)": rounded,
        "floor(float8)": _to_whole(math.floor),
        "ceil(float8) ceiling(float8)": _to_whole(math.ceil),
        "trunc(float8) dtrunc(float8)": _to_whole(math.trunc),
        "sign(float8)": lambda number: 1.0 if number > 0 else -1.0 if number < 0 else 0.0,
    }
)


@kernel("dsqrt(float8) sqrt(float8)")
def _sqrt(number: float) -> float:
    if number < 0:
        raise SqlError(
            "invalid_argument_for_power_function", "cannot take square root of a negative number"
        )
    return math.sqrt(number)


_register_integers()
_register_floats()
