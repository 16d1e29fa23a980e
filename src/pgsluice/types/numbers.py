"""bool, the integers, oid and the floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.buffers import (
    Mask,
    content_of,
    fixed_width,
    to_mask,
    unchecked_text,
    validity_buffer,
)
from pgsluice.types.codec import ColumnType, Decoded, Spans, cast_text

_BOOL: Final = pa.bool_()
_ZERO: Final = r"^[+-]?0*\.?0*([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class BoolType(ColumnType):
    """``t`` and ``f``; one byte, 1 or 0, in binary."""

    name: str = "bool"
    arrow_type: pa.DataType = _BOOL
    spark_ddl: str = "boolean"

    def decode_text(self, values: pa.Array) -> Decoded:
        raw = Spans.of(values)
        raw.refuse(raw.lengths != 1, self.name)
        letters = np.zeros(len(values), np.uint8)
        there = raw.lengths == 1
        letters[there] = raw.data[raw.starts[there]]
        raw.refuse((letters != b"t"[0]) & (letters != b"f"[0]), self.name)
        return self._decoded(letters == b"t"[0], raw.null)

    def decode_spans(self, values: Spans) -> Decoded:
        letters = values.of_width(1, self.name)[:, 0]
        values.refuse(letters > 1, self.name, "binary")
        return self._decoded(letters == 1, values.null)

    binary_width: ClassVar[int] = 1

    def _decoded(self, is_true: Mask, null: Mask | None) -> Decoded:
        bits = np.packbits(is_true, bitorder="little")
        buffers = [validity_buffer(null), pa.py_buffer(bits)]
        return Decoded(pa.Array.from_buffers(self.arrow_type, len(is_true), buffers))


@dataclass(frozen=True, slots=True)
class IntegerType(ColumnType):
    """int2, int4, int8, and oid: unsigned 32 bits, which int64 holds."""

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    wire: str

    def decode_text(self, values: pa.Array) -> Decoded:
        if content_of(values)[1].max(initial=0) > b"9"[0]:
            # Arrow also reads 0x1F, which the server never writes.
            Spans.of(values).refuse(
                ~to_mask(pc.match_substring_regex(values, r"^-?[0-9]+$")), self.name
            )
        decoded = cast_text(values, self.arrow_type, self.name)
        if self.wire == ">u4":
            wrong = to_mask(pc.or_(pc.less(decoded, 0), pc.greater(decoded, 2**32 - 1)))
            Spans.of(values).refuse(wrong, self.name)
        return Decoded(decoded)

    def decode_spans(self, values: Spans) -> Decoded:
        matrix = values.of_width(self.binary_width, self.name)
        native = matrix.view(self.wire)[:, 0].astype(self.arrow_type.to_pandas_dtype())
        return Decoded(fixed_width(native, self.arrow_type, values.null))

    @property
    def binary_width(self) -> int:
        return np.dtype(self.wire).itemsize


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
            Spans.of(values).refuse(to_mask(pc.and_not(infinite, spelt)), self.name)
        zero = pc.equal(decoded, 0)
        if pc.any(zero).as_py():
            spelt = pc.match_substring_regex(unchecked_text(values), _ZERO)
            Spans.of(values).refuse(to_mask(pc.and_not(zero, spelt)), self.name)

    def decode_spans(self, values: Spans) -> Decoded:
        wire = np.dtype(self.arrow_type.to_pandas_dtype()).newbyteorder(">")
        native = values.of_width(wire.itemsize, self.name).view(wire)[:, 0]
        native = native.astype(wire.newbyteorder("="))
        native[np.isnan(native)] = np.nan  # its other bits are not in the text form
        return Decoded(fixed_width(native, self.arrow_type, values.null))

    @property
    def binary_width(self) -> int | None:
        return int(self.arrow_type.bit_width) // 8
