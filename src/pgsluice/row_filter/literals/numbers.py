"""Constants of numeric types: integers, numeric, floats.

Source: src/backend/utils/adt/numutils.c, numeric.c, float.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np

from pgsluice.row_filter.literals.bad_literals import BadLiteral, invalid, not_exact
from pgsluice.types.binary_to_text.floats import format_float4, format_float8

#: A number with more digits is out of range; Python converts no more than 4,300.
_MOST_DIGITS = 30


def integer(bits: int, name: str) -> Callable[[str], str]:
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
            raise BadLiteral(f'value "{text}" is out of range for type {name}')
        return str(value)

    return read


def oid(text: str) -> str:
    """As C's strtoul with base 0: ``0x1f`` is hexadecimal, ``017`` octal."""
    match = _OID.fullmatch(text)
    if match is None:
        raise invalid("oid", text)
    decimal = int((match[4] or "0")[:_MOST_DIGITS])
    value = int(match[2], 16) if match[2] else int(match[3], 8) if match[3] else decimal
    value = -value if match[1] == "-" else value
    if not -(1 << 31) <= value < 1 << 32:
        raise BadLiteral(f'value "{text}" is out of range for type oid')
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


def numeric(text: str) -> str:
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
        raise BadLiteral("value overflows numeric format")
    value = Decimal(f"{number}e{exponent}")
    shown = format(value, "f")
    whole, _, fraction = shown.partition(".")
    if len(whole.lstrip("-0")) > 131072 or len(fraction) > 16383:
        raise BadLiteral("value overflows numeric format")
    return shown[1:] if shown.startswith("-") and not value else shown


def floating(bits: int, name: str) -> Callable[[str], str]:
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
            raise BadLiteral(f'"{stripped}" is out of range for type {name}')
        return shown

    return read


def _shortest(value: float, bits: int) -> str:
    """The shortest text that reads back the same (extra_float_digits = 1)."""
    if bits == 64:
        return format_float8(value)
    with np.errstate(over="ignore", under="ignore"):
        return format_float4(float(np.float32(value)))
