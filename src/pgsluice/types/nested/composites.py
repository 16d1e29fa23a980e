"""Composites as structs of their attributes.

A composite is unfit if one of its values does not fit its field: the whole value is rejected, with
its text. Source: src/backend/utils/adt/rowtypes.c (``record_out``, ``record_send``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.binary_to_text.cursor import Cursor, Misshapen
from pgsluice.types.buffers import Mask, null_mask
from pgsluice.types.codec import ColumnType, Decoded, RawValues, malformed
from pgsluice.types.nested.fields import decode_field, joined, quoted_text, split_text, without


@dataclass(frozen=True, slots=True)
class CompositeType(ColumnType):
    """A composite as struct<its attributes>.

    Attributes:
        fields: the types of the attributes, in their order; at least one.
    """

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    fields: tuple[ColumnType, ...]

    copies_binary: ClassVar[bool] = False  # values are read one after the other

    @classmethod
    def of(cls, name: str, names: Sequence[str], fields: Sequence[ColumnType]) -> CompositeType:
        pairs = list(zip(names, fields, strict=True))
        kind = pa.struct([(name, field.arrow_type) for name, field in pairs])
        ddl = ",".join(f"{_quoted(name)}:{field.spark_ddl}" for name, field in pairs)
        return cls(name, kind, f"struct<{ddl}>", tuple(fields))

    @property
    def reads_binary(self) -> bool:
        return all(field.reads_binary for field in self.fields)

    @property
    def tells_values_apart(self) -> bool:
        return all(field.tells_values_apart for field in self.fields)

    def decode_text(self, values: pa.Array) -> Decoded:
        null = null_mask(values)
        count = len(self.fields)
        plain = without(values, np.zeros_like(null), b"(" + b"," * (count - 1) + b")")
        rows = RawValues.of(plain)
        rows.refuse(rows.lengths < 2, self.name)
        opening, closing = rows.data[rows.starts], rows.data[rows.offsets[1:] - 1]
        rows.refuse((opening != ord("(")) | (closing != ord(")")), self.name)
        split = split_text(plain, count, self.name)
        return self._assemble([split.at(index) for index in range(count)], null, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        columns: list[list[bytes | None]] = [[] for _ in self.fields]
        for row, value in enumerate(values.to_pylist()):
            try:
                fields = _parse(value, len(columns))
            except Misshapen:
                raise malformed(self.name, row, "binary") from None
            for column, field in zip(columns, fields, strict=True):
                column.append(field)
        arrays = [pa.array(column, pa.large_binary()) for column in columns]
        return self._assemble(arrays, null_mask(values), "binary")

    def _assemble(self, columns: Sequence[pa.Array], null: Mask, form: str) -> Decoded:
        unfit = np.zeros(len(null), np.bool_)
        children = []
        for field, values in zip(self.fields, columns, strict=True):
            decoded = decode_field(field, values, self.name, form)
            children.append(decoded.values)
            if decoded.unfit is not None:
                unfit |= decoded.unfit
        structs = pa.StructArray.from_arrays(
            children, fields=list(self.arrow_type), mask=pa.array(null | unfit)
        )
        return Decoded(structs, unfit if unfit.any() else None)

    def encode_text(self, array: pa.Array) -> pa.Array:
        parts: list[str | pa.Array] = []
        for index, field in enumerate(self.fields):
            parts += [",", quoted_text(field, array.field(index))]
        text = joined("(", *parts[1:], ")")
        return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.large_string()))


def _parse(value: bytes | None, count: int) -> list[bytes | None]:
    """The attributes of a binary form; all NULL for NULL."""
    if value is None:
        return [None] * count
    cursor = Cursor(value)
    if cursor.number(4) != count:
        raise Misshapen
    fields = []
    for _ in range(count):
        cursor.take(4)  # the OID of its type
        fields.append(cursor.sized())
    cursor.close()
    return fields


def _quoted(name: str) -> str:
    """A name as in Spark's DDL."""
    return "`" + name.replace("`", "``") + "`"
