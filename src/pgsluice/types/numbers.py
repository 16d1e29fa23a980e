"""bool, the integers, oid and the floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.codec import (
    Bytes,
    ColumnType,
    Decoded,
    RawValues,
    cast_text,
    fixed_width,
    to_mask,
    unchecked_text,
)

_BOOL: Final = pa.bool_()
_ZERO: Final = r"^[+-]?0*\.?0*([eE][+-]?[0-9]+)?$"


def fixed_width_bytes(
    values: pa.Array, width: int, type_name: str, form: str = "binary"
) -> tuple[Bytes, RawValues]:
    """The bytes of values of one width, as a matrix of n rows and ``width`` columns.

    The row of a null is all zeros.

    Raises:
        ConversionError: a value is of another width.
    """
    raw = RawValues.of(values)
    wrong = raw.lengths != width
    if not wrong.any():
        return raw.data.reshape(-1, width), raw
    raw.refuse(wrong, type_name, form)
    assert raw.null is not None
    matrix = np.zeros((len(values), width), np.uint8)
    there = np.flatnonzero(~raw.null)
    matrix[there] = raw.data[raw.starts[there, None] + np.arange(width)]
    return matrix, raw


@dataclass(frozen=True, slots=True)
class BoolType(ColumnType):
    """``t`` and ``f``; one byte, 1 or 0, in binary."""

    name: str = "bool"
    arrow_type: pa.DataType = _BOOL
    spark_ddl: str = "boolean"

    def decode_text(self, values: pa.Array) -> Decoded:
        return self._decode(values, b"t"[0], b"f"[0], "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self._decode(values, 1, 0, "binary")

    def _decode(self, values: pa.Array, true: int, false: int, form: str) -> Decoded:
        letters, raw = fixed_width_bytes(values, 1, self.name, form)
        is_true = letters[:, 0] == true
        raw.refuse(~(is_true | (letters[:, 0] == false)), self.name, form)
        return Decoded(pa.array(is_true, mask=raw.null))

    def encode_text(self, array: pa.Array) -> pa.Array:
        return pc.if_else(array, "t", "f").cast(pa.large_string())


@dataclass(frozen=True, slots=True)
class IntegerType(ColumnType):
    """int2, int4, int8, and oid: unsigned 32 bits, which int64 holds."""

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    wire: str

    def decode_text(self, values: pa.Array) -> Decoded:
        raw = RawValues.of(values)
        if raw.data.size and raw.data.max() > b"9"[0]:
            # Arrow also reads 0x1F, which the server never writes.
            raw.refuse(~to_mask(pc.match_substring_regex(values, r"^-?[0-9]+$")), self.name)
        decoded = cast_text(values, self.arrow_type, self.name)
        if self.wire == ">u4":
            wrong = to_mask(pc.or_(pc.less(decoded, 0), pc.greater(decoded, 2**32 - 1)))
            raw.refuse(wrong, self.name)
        return Decoded(decoded)

    def decode_binary(self, values: pa.Array) -> Decoded:
        width = np.dtype(self.wire).itemsize
        matrix, raw = fixed_width_bytes(values, width, self.name)
        numbers = np.ascontiguousarray(matrix).view(self.wire)[:, 0]
        native = numbers.astype(self.arrow_type.to_pandas_dtype())
        return Decoded(fixed_width(native, self.arrow_type, raw.null))

    def encode_text(self, array: pa.Array) -> pa.Array:
        return array.cast(pa.large_string())


@dataclass(frozen=True, slots=True)
class FloatType(ColumnType):
    """float4 and float8, with NaN and the infinities.

    Text is read to the nearest value of the type itself, so that what the server prints under
    extra_float_digits = 3 reads back exactly.
    """

    name: str
    arrow_type: pa.DataType
    spark_ddl: str

    def decode_text(self, values: pa.Array) -> Decoded:
        decoded = cast_text(values, self.arrow_type, self.name)
        self._refuse_overflow(values, decoded)
        return Decoded(decoded)

    def _refuse_overflow(self, values: pa.Array, decoded: pa.Array) -> None:
        """Arrow turns 1e400 into infinity and 1e-400 into zero; the server refuses both."""
        infinite = pc.is_inf(decoded)
        if pc.any(infinite).as_py():
            spelt = pc.match_substring_regex(unchecked_text(values), r"(?i)^[+-]?inf(inity)?$")
            RawValues.of(values).refuse(to_mask(pc.and_not(infinite, spelt)), self.name)
        zero = pc.equal(decoded, 0)
        if pc.any(zero).as_py():
            spelt = pc.match_substring_regex(unchecked_text(values), _ZERO)
            RawValues.of(values).refuse(to_mask(pc.and_not(zero, spelt)), self.name)

    def decode_binary(self, values: pa.Array) -> Decoded:
        wire = np.dtype(self.arrow_type.to_pandas_dtype()).newbyteorder(">")
        matrix, raw = fixed_width_bytes(values, wire.itemsize, self.name)
        native = np.ascontiguousarray(matrix).view(wire)[:, 0].astype(wire.newbyteorder("="))
        native[np.isnan(native)] = np.nan  # its other bits are not in the text form
        return Decoded(fixed_width(native, self.arrow_type, raw.null))

    def encode_text(self, array: pa.Array) -> pa.Array:
        text = array.cast(pa.large_string())
        for arrows, postgres in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            text = pc.if_else(pc.equal(text, arrows), postgres, text)
        return text.cast(pa.large_string())
