"""Ranges as structs of their bounds, multiranges as lists of such structs.

A bound that is missing is NULL. A range is unfit if a bound does not fit its type: ``infinity`` in
a date. Source: src/backend/utils/adt/rangetypes.c, multirangetypes.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import ConversionError
from pgsluice.types.buffers import Int64s, Mask, fixed_width, null_mask, offsets_of, spans, to_mask
from pgsluice.types.codec import ColumnType, Decoded, RawValues, malformed
from pgsluice.types.nested.fields import (
    decode_field,
    in_value,
    joined,
    quoted_text,
    split_text,
    without,
)

RANGE_FIELDS: Final = ("lower", "upper", "lower_inc", "upper_inc", "empty")
"""The fields of a range's struct."""

_ALL: Final = b"(,)"
_NONE: Final = b"empty"
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16
_ALL_FLAGS: Final = 31
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class RangeType(ColumnType):
    """A range as struct<lower, upper, lower_inc, upper_inc, empty>.

    Attributes:
        bound: the type of the bounds.
    """

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    bound: ColumnType

    copies_binary: ClassVar[bool] = False  # bounds are read one after the other

    @classmethod
    def of(cls, name: str, bound: ColumnType) -> RangeType:
        kinds = [bound.arrow_type] * 2 + [pa.bool_()] * 3
        ddls = [bound.spark_ddl] * 2 + ["boolean"] * 3
        ddl = ",".join(f"{name}:{of}" for name, of in zip(RANGE_FIELDS, ddls, strict=True))
        kind = pa.struct(list(zip(RANGE_FIELDS, kinds, strict=True)))
        return cls(name, kind, f"struct<{ddl}>", bound)

    @property
    def reads_binary(self) -> bool:
        return self.bound.reads_binary

    @property
    def tells_values_apart(self) -> bool:
        return self.bound.tells_values_apart

    def decode_text(self, values: pa.Array) -> Decoded:
        null = null_mask(values)
        is_empty = to_mask(pc.equal(values, pa.scalar(_NONE, pa.large_binary())))
        plain = without(values, is_empty, _ALL)
        rows = RawValues.of(plain)
        rows.refuse(rows.lengths < len(_ALL), self.name)
        opening, closing = rows.data[rows.starts], rows.data[rows.offsets[1:] - 1]
        lower_inc, upper_inc = opening == ord("["), closing == ord("]")
        rows.refuse(~(lower_inc | (opening == ord("("))), self.name)
        rows.refuse(~(upper_inc | (closing == ord(")"))), self.name)
        fields = split_text(plain, 2, self.name)
        bounds = (fields.at(0), fields.at(1))
        return self._assemble(bounds, (lower_inc, upper_inc, is_empty), null, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        null, raw = null_mask(values), RawValues.of(values)
        bounds: tuple[list[bytes | None], list[bytes | None]] = ([], [])
        flags = np.zeros(len(values), np.uint8)
        data = raw.data.tobytes()
        ends = raw.offsets[1:].tolist()
        for row, (start, end) in enumerate(zip(raw.starts.tolist(), ends, strict=True)):
            if null[row]:
                lower = upper = None
            else:
                try:
                    flags[row], lower, upper = _parse_range(data[start:end])
                except (ValueError, struct.error, IndexError):
                    raise malformed(self.name, row, "binary") from None
            bounds[0].append(lower)
            bounds[1].append(upper)
        arrays = tuple(pa.array(some, pa.large_binary()) for some in bounds)
        is_empty = flags & _EMPTY != 0
        inclusive = (flags & _LOWER_INCLUSIVE != 0, flags & _UPPER_INCLUSIVE != 0, is_empty)
        return self._assemble((arrays[0], arrays[1]), inclusive, null, "binary")

    def _assemble(
        self, bounds: tuple[pa.Array, pa.Array], flags: tuple[Mask, ...], null: Mask, form: str
    ) -> Decoded:
        decoded = [decode_field(self.bound, values, self.name, form) for values in bounds]
        unfit = np.zeros(len(null), np.bool_)
        for each in decoded:
            if each.unfit is not None:
                unfit |= each.unfit
        children = [each.values for each in decoded]
        children += [pa.array(flag) for flag in flags]
        structs = pa.StructArray.from_arrays(
            children, fields=list(self.arrow_type), mask=pa.array(null | unfit)
        )
        return Decoded(structs, unfit if unfit.any() else None)

    def encode_text(self, array: pa.Array) -> pa.Array:
        lower, upper, lower_inc, upper_inc, is_empty = (
            array.field(index) for index in range(array.type.num_fields)
        )
        text = joined(
            pc.if_else(lower_inc, "[", "(").cast(pa.large_string()),
            quoted_text(self.bound, lower),
            ",",
            quoted_text(self.bound, upper),
            pc.if_else(upper_inc, "]", ")").cast(pa.large_string()),
        )
        text = pc.if_else(is_empty, pa.scalar("empty", pa.large_string()), text)
        return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.large_string()))


def _parse_range(value: bytes) -> tuple[int, bytes | None, bytes | None]:
    """The flags and bounds of a binary form."""
    flags, at = value[0], 1
    if flags > _ALL_FLAGS:
        raise ValueError
    bounds: list[bytes | None] = []
    for missing in (_EMPTY | _NO_LOWER, _EMPTY | _NO_UPPER):
        if flags & missing:
            bounds.append(None)
            continue
        (size,) = _LENGTH.unpack_from(value, at)
        at += 4 + size
        if size < 0 or at > len(value):
            raise ValueError
        bounds.append(value[at - size : at])
    if at != len(value):
        raise ValueError
    return flags, bounds[0], bounds[1]


@dataclass(frozen=True, slots=True)
class MultirangeType(ColumnType):
    """A multirange as a list of its ranges.

    Attributes:
        range: the type of the ranges.
    """

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    range: RangeType

    copies_binary: ClassVar[bool] = False

    @classmethod
    def of(cls, name: str, of: RangeType) -> MultirangeType:
        return cls(name, pa.list_(of.arrow_type), f"array<{of.spark_ddl}>", of)

    @property
    def reads_binary(self) -> bool:
        return self.range.reads_binary

    @property
    def tells_values_apart(self) -> bool:
        return self.range.tells_values_apart

    def decode_text(self, values: pa.Array) -> Decoded:
        null = null_mask(values)
        rows = RawValues.of(without(values, np.zeros(len(values), np.bool_), b"{}"))
        data, starts, ends = rows.data, rows.offsets[:-1], rows.offsets[1:]
        rows.refuse(rows.lengths < 2, self.name)
        rows.refuse((data[starts] != ord("{")) | (data[ends - 1] != ord("}")), self.name)
        inside = np.cumsum(data == ord('"'), dtype=np.uint8) % 2 == 1
        if len(ends):
            rows.refuse(inside[ends - 1], self.name)
        # Each range has a comma of its own, and another one follows it if it is not the last.
        commas = np.flatnonzero((data == ord(",")) & ~inside)
        counts = np.diff(np.searchsorted(commas, rows.offsets))
        rows.refuse((counts % 2 == 0) & (rows.lengths > 2), self.name)
        rows.refuse((counts > 0) & (rows.lengths == 2), self.name)
        of_row = np.arange(len(commas)) - np.repeat(np.cumsum(counts) - counts, counts)
        between = commas[of_row % 2 == 1]
        filled = rows.lengths > 2
        first = np.sort(np.append(starts[filled], between)) + 1
        last = np.sort(np.append(between, ends[filled] - 1))
        ranges = spans(data, first, last)
        return self._assemble(ranges, offsets_of((counts + 1) // 2), null, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        ranges: list[bytes] = []
        counts = np.zeros(len(values), np.int64)
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                some = _parse_multirange(value)
            except (ValueError, struct.error):
                raise malformed(self.name, row, "binary") from None
            counts[row] = len(some)
            ranges += some
        array = pa.array(ranges, pa.large_binary())
        return self._assemble(array, offsets_of(counts), null_mask(values), "binary")

    def _assemble(self, ranges: pa.Array, offsets: Int64s, null: Mask, form: str) -> Decoded:
        try:
            decoded = (
                self.range.decode_text(ranges)
                if form == "text"
                else self.range.decode_binary(ranges)
            )
        except ConversionError as error:
            row = error.facts.get("row")
            if row is not None:
                error.facts["row"] = int(np.searchsorted(offsets, row, "right")) - 1
            raise in_value(error, self.name, form) from None
        unfit = np.zeros(len(null), np.bool_)
        if decoded.unfit is not None:
            before = offsets_of(decoded.unfit)
            unfit = before[offsets[1:]] > before[offsets[:-1]]
        lists = pa.ListArray.from_arrays(
            fixed_width(offsets.astype(np.int32), pa.int32()),
            decoded.values,
            type=self.arrow_type,
            mask=pa.array(null | unfit),
        )
        return Decoded(lists, unfit if unfit.any() else None)

    def encode_text(self, array: pa.Array) -> pa.Array:
        texts = self.range.encode_text(array.flatten())
        lengths = pc.list_value_length(array).fill_null(0)
        offsets = offsets_of(np.array(lengths, np.int64))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), texts)
        text = joined("{", pc.binary_join(lists, pa.scalar(",", pa.large_string())), "}")
        return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.large_string()))


def _parse_multirange(value: bytes) -> list[bytes]:
    """The ranges of a binary form."""
    (count,) = _LENGTH.unpack_from(value)
    at, ranges = 4, []
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(value, at)
        at += 4 + size
        if size < 0 or at > len(value):
            raise ValueError
        ranges.append(value[at - size : at])
    if at != len(value) or count < 0:
        raise ValueError
    return ranges
