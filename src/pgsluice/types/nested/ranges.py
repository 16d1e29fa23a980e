"""Ranges as structs of their bounds, multiranges as lists of such structs.

A bound that is missing is NULL. A range is unfit if a bound does not fit its type: ``infinity`` in
a date. Source: src/backend/utils/adt/rangetypes.c, multirangetypes.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.arrays import ListType
from pgsluice.types.binary_to_text.containers import RangeParts, ranges_of
from pgsluice.types.buffers import Mask, null_mask, offsets_of, spans, to_mask
from pgsluice.types.codec import ColumnType, Decoded, Spans, parsed
from pgsluice.types.nested.fields import split_text, structs, without

RANGE_FIELDS: Final = ("lower", "upper", "lower_inc", "upper_inc", "empty")
"""The fields of a range's struct."""

_ALL: Final = b"(,)"
_NONE: Final = b"empty"


@dataclass(frozen=True, slots=True)
class RangeType(ColumnType):
    """A range as struct<lower, upper, lower_inc, upper_inc, empty>, with bounds of the type
    ``bound``."""

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
        rows = Spans.of(plain)
        rows.refuse(rows.lengths < len(_ALL), self.name)
        opening, closing = rows.data[rows.starts], rows.data[rows.ends - 1]
        lower_inc, upper_inc = opening == ord("["), closing == ord("]")
        rows.refuse(~(lower_inc | (opening == ord("("))), self.name)
        rows.refuse(~(upper_inc | (closing == ord(")"))), self.name)
        fields = split_text(plain, 2, self.name)
        bounds = (fields.at(0), fields.at(1))
        return self._structs(bounds, (lower_inc, upper_inc, is_empty), null, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        null, nothing = null_mask(values), RangeParts(False, False, False, None, None)
        rows = [row or nothing for row in parsed(values, RangeParts.parse, self.name)]
        lower, upper = (
            pa.array(bounds, pa.large_binary())
            for bounds in ([row.lower for row in rows], [row.upper for row in rows])
        )
        flags = np.array([(row.lower_inc, row.upper_inc, row.is_empty) for row in rows], np.bool_)
        return self._structs((lower, upper), [*flags.reshape(-1, 3).T], null, "binary")

    def _structs(
        self, bounds: Sequence[pa.Array], flags: Sequence[Mask], null: Mask, form: str
    ) -> Decoded:
        fields = [(self.bound, values) for values in bounds]
        return structs(self.arrow_type, fields, flags, null, (self.name, form))


@dataclass(frozen=True, slots=True)
class MultirangeType(ListType):
    """A multirange as a list of its ranges; ``element`` is their type."""

    copies_binary: ClassVar[bool] = False

    @classmethod
    def of_ranges(cls, name: str, ranges: RangeType) -> MultirangeType:
        kind = pa.list_(ranges.arrow_type)
        return cls(name, kind, f"array<{ranges.spark_ddl}>", ranges, ",")

    def decode_text(self, values: pa.Array) -> Decoded:
        null = null_mask(values)
        rows = Spans.of(without(values, np.zeros(len(values), np.bool_), b"{}"))
        data, starts, ends = rows.data, rows.starts, rows.ends
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
        return self._lists(ranges, offsets_of((counts + 1) // 2), null, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        each = [row or [] for row in parsed(values, ranges_of, self.name)]
        ranges = pa.array(chain.from_iterable(each), pa.large_binary())
        offsets = offsets_of(np.array([len(row) for row in each], np.int64))
        return self._lists(ranges, offsets, null_mask(values), "binary")
