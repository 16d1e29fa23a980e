"""numeric: decimals that are exact, or a string.

Source: src/backend/utils/adt/numeric.c (``make_numeric_typmod``, ``numeric_send``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.codec import (
    ColumnType,
    Decoded,
    RawValues,
    as_text,
    blank,
    cast_text,
    malformed,
    shrink,
    to_mask,
    unchecked_text,
)
from pgsluice.types.numbers import FloatType
from pgsluice.types.options import MAX_PRECISION, TypeOptions
from pgsluice.types.text import PrintedType

_NUMBER: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_DOUBLE: Final = pa.float64()
_SPECIAL: Final = r"NaN|-?Infinity"
_HEADER: Final = struct.Struct(">hhHH")
_POSITIVE, _NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x0000, 0x4000, 0xC000, 0xD000, 0xF000
_SPECIAL_SIGNS: Final = {_NAN: "NaN", _INFINITY: "Infinity", _MINUS_INFINITY: "-Infinity"}


def numeric_type(typmod: int, options: TypeOptions) -> ColumnType:
    """The way of a numeric column: decimal(p, s) where 38 digits suffice, else as chosen."""
    declared = declared_precision(typmod)
    if declared is not None and not options.numeric_always:
        precision, scale = decimal_shape(*declared)
        if precision <= MAX_PRECISION:
            return DecimalType.of(precision, scale, declared=True)
    chosen = options.numeric_decimal()
    if chosen is not None:
        return DecimalType.of(*chosen, declared=False)
    return NumericDoubleType() if options.numeric == "double" else NumericTextType()


def declared_precision(typmod: int) -> tuple[int, int] | None:
    """Precision and scale that a type modifier holds; None without one.

    The scale is signed since PostgreSQL 15: 11 bits, two's complement.
    """
    if typmod < 4:
        return None
    packed = typmod - 4
    return packed >> 16, ((packed & 0x7FF) ^ 0x400) - 0x400


def decimal_shape(precision: int, scale: int) -> tuple[int, int]:
    """The decimal(p, s) with 0 <= s <= p that holds every numeric(precision, scale).

    numeric(3, 5) is less than 0.01 and has 5 digits after the point; numeric(3, -2) is a
    multiple of 100 of up to 5 digits.
    """
    if scale < 0:
        return precision - scale, 0
    return max(precision, scale), scale


@dataclass(frozen=True, slots=True)
class DecimalType(ColumnType):
    """numeric as decimal(p, s). NaN and the infinities are unfit.

    Attributes:
        declared: the server holds the column to (p, s): a number that does not fit is not
            of the type. Otherwise it is a number, but unfit.
    """

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    declared: bool

    @classmethod
    def of(cls, precision: int, scale: int, *, declared: bool) -> DecimalType:
        ddl = f"decimal({precision},{scale})"
        return cls("numeric", pa.decimal128(precision, scale), ddl, declared)

    def decode_text(self, values: pa.Array) -> Decoded:
        try:
            # Refuses what is no number, and whatever it would have to round.
            return Decoded(unchecked_text(values).cast(self.arrow_type))
        except pa.ArrowInvalid:
            return self._decode_odd(values)

    def _decode_odd(self, values: pa.Array) -> Decoded:
        text = as_text(values, self.name)
        unfit = to_mask(pc.match_substring_regex(text, f"^({_SPECIAL})$"))
        if not self.declared:
            whole = self.arrow_type.precision - self.arrow_type.scale
            fits = f"^[+-]?0*[0-9]{{0,{whole}}}(\\.[0-9]{{0,{self.arrow_type.scale}}}0*)?$"
            number = pc.match_substring_regex(text, f"^{_NUMBER}$")
            unfit |= to_mask(pc.and_not(number, pc.match_substring_regex(text, fits)))
        decoded = cast_text(blank(values, unfit), self.arrow_type, self.name)
        return Decoded(decoded, unfit if unfit.any() else None)

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self.decode_text(numeric_binary_to_text(values))

    def encode_text(self, array: pa.Array) -> pa.Array:
        return pa.array(
            [None if value is None else f"{value:f}" for value in array.to_pylist()],
            pa.large_string(),
        )


@dataclass(frozen=True, slots=True)
class NumericTextType(PrintedType):
    """numeric as the server prints it."""

    name: str = "numeric"

    def decode_text(self, values: pa.Array) -> Decoded:
        text = as_text(values, self.name)
        raw = RawValues.of(values)
        if raw.data.size and raw.data.max() <= b"9"[0]:
            cast_text(values, pa.float64(), self.name)  # it parses: these are numbers
        else:
            form = pc.match_substring_regex(text, f"^({_NUMBER}|{_SPECIAL})$")
            raw.refuse(~to_mask(form), self.name)
        return Decoded(shrink(text, self.arrow_type, self.name))

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self.decode_text(numeric_binary_to_text(values))


@dataclass(frozen=True, slots=True)
class NumericDoubleType(FloatType):
    """numeric as the nearest double, because the user chose so; over its range is unfit."""

    name: str = "numeric"
    arrow_type: pa.DataType = _DOUBLE
    spark_ddl: str = "double"

    def decode_text(self, values: pa.Array) -> Decoded:
        decoded = cast_text(values, self.arrow_type, self.name)
        infinite = pc.is_inf(decoded)
        if not pc.any(infinite).as_py():
            return Decoded(decoded)
        spelt = pc.match_substring_regex(unchecked_text(values), f"^({_SPECIAL})$")
        unfit = to_mask(pc.and_not(infinite, spelt))
        return Decoded(blank(decoded, unfit), unfit) if unfit.any() else Decoded(decoded)

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self.decode_text(numeric_binary_to_text(values))


def numeric_binary_to_text(values: pa.Array) -> pa.Array:
    """numeric's binary form as the text that the server would print, value by value.

    Raises:
        ConversionError: a value is not of the binary form.
    """
    printed = [
        None if value is None else _print_numeric(value, row)
        for row, value in enumerate(values.to_pylist())
    ]
    return pa.array(printed, pa.large_binary())


def _print_numeric(value: bytes, row: int) -> bytes:
    try:
        count, weight, sign, display_scale = _HEADER.unpack_from(value)
        if count < 0 or len(value) != _HEADER.size + 2 * count:
            raise malformed("numeric", row, "binary")
        if sign in _SPECIAL_SIGNS:
            return _SPECIAL_SIGNS[sign].encode()
        digits = struct.unpack_from(f">{count}h", value, _HEADER.size)
    except struct.error:
        raise malformed("numeric", row, "binary") from None
    if sign not in (_POSITIVE, _NEGATIVE) or any(not 0 <= digit < 10000 for digit in digits):
        raise malformed("numeric", row, "binary")
    return _print_digits(digits, weight, sign == _NEGATIVE, display_scale)


def _print_digits(
    digits: tuple[int, ...], weight: int, is_negative: bool, display_scale: int
) -> bytes:
    """Digits in base 10000, the first worth 10000 ** weight, as decimal text."""
    whole = [digits[i] if i < len(digits) else 0 for i in range(weight + 1)]
    places = (display_scale + 3) // 4
    after = [
        digits[i] if 0 <= i < len(digits) else 0 for i in range(weight + 1, weight + 1 + places)
    ]
    integer = "".join(f"{digit:04}" for digit in whole).lstrip("0") or "0"
    fraction = "".join(f"{digit:04}" for digit in after)[:display_scale]
    text = f"{integer}.{fraction}" if display_scale else integer
    return (f"-{text}" if is_negative else text).encode()
