"""numeric as an exact decimal, a string or a double.

Source: src/backend/utils/adt/numeric.c (``make_numeric_typmod``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.buffers import blank, content_of, to_mask, unchecked_text
from pgsluice.types.codec import ColumnType, Decoded, Spans, as_text, cast_text, shrink
from pgsluice.types.numbers import FloatType
from pgsluice.types.numeric_binary import (
    numeric_binary_to_decimals,
    numeric_binary_to_text,
    reads_decimals,
)
from pgsluice.types.options import MAX_PRECISION, TypeOptions
from pgsluice.types.text import ComputedTextType

_NUMBER: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_DOUBLE: Final = pa.float64()
_SPECIAL: Final = r"NaN|-?Infinity"


def numeric_type(typmod: int, options: TypeOptions) -> ColumnType:
    """The type of a numeric column: decimal(p, s) if 38 digits suffice, else the user's choice."""
    declared = declared_precision(typmod)
    if declared is not None and not options.for_column:
        precision, scale = decimal_shape(*declared)
        if precision <= MAX_PRECISION:
            return DecimalType.of(precision, scale, declared=True)
    chosen = options.numeric_decimal()
    if chosen is not None:
        return DecimalType.of(*chosen, declared=False)
    return NumericDoubleType() if options.numeric == "double" else NumericTextType()


def declared_precision(typmod: int) -> tuple[int, int] | None:
    """The precision and scale in a type modifier; None for the modifier -1.

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
        declared: the column itself is numeric(p, s), so a number that does not fit is
            malformed. Otherwise such a number is valid, but unfit.
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
            # The cast refuses text that is not a number, and numbers that it would have to round.
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

    def decode_spans(self, values: Spans) -> Decoded:
        decimals = numeric_binary_to_decimals(values, self.arrow_type)
        if decimals is not None:
            return Decoded(decimals)
        return self.decode_text(numeric_binary_to_text(values))

    @property
    def copies_binary(self) -> bool:
        return reads_decimals(self.arrow_type)  # more digits are printed before they are decoded


@dataclass(frozen=True, slots=True)
class NumericTextType(ComputedTextType):
    """numeric as the server prints it."""

    name: str = "numeric"

    def decode_text(self, values: pa.Array) -> Decoded:
        text = as_text(values, self.name)
        data = content_of(values)[1]
        if data.size and data.max() <= b"9"[0]:
            cast_text(values, pa.float64(), self.name)  # refuses text that is not a number
        else:
            form = pc.match_substring_regex(text, f"^({_NUMBER}|{_SPECIAL})$")
            Spans.of(values).refuse(~to_mask(form), self.name)
        return Decoded(shrink(text, self.arrow_type, self.name))

    def decode_spans(self, values: Spans) -> Decoded:
        # Our own output needs no check.
        return ComputedTextType.decode_text(self, numeric_binary_to_text(values))

    copies_binary: ClassVar[bool] = False  # its digits are printed before they are decoded


@dataclass(frozen=True, slots=True)
class NumericDoubleType(FloatType):
    """numeric as the nearest double; numbers beyond its range are unfit."""

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

    def decode_spans(self, values: Spans) -> Decoded:
        return self.decode_text(numeric_binary_to_text(values))

    binary_width: ClassVar[None] = None
    copies_binary: ClassVar[bool] = False  # its digits are printed before they are decoded
    tells_values_apart: ClassVar[bool] = False
