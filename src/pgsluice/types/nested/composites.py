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

from pgsluice.types.binary_to_text.containers import fields_of
from pgsluice.types.binary_to_text.cursor import Misshapen
from pgsluice.types.buffers import Mask, null_mask
from pgsluice.types.codec import ColumnType, Decoded, Spans, parsed
from pgsluice.types.nested.fields import split_text, structs, without


@dataclass(frozen=True, slots=True)
class CompositeType(ColumnType):
    """A composite as struct<its attributes>; ``fields`` are their types, in their order, at least
    one."""

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
        rows = Spans.of(plain)
        rows.refuse(rows.lengths < 2, self.name)
        opening, closing = rows.data[rows.starts], rows.data[rows.ends - 1]
        rows.refuse((opening != ord("(")) | (closing != ord(")")), self.name)
        split = split_text(plain, count, self.name)
        return self._structs([split.at(index) for index in range(count)], null, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        missing = [None] * len(self.fields)
        rows = [row or missing for row in parsed(values, self._parse, self.name)]
        columns = zip(*rows, strict=True) if rows else ((),) * len(missing)
        arrays = [pa.array(column, pa.large_binary()) for column in columns]
        return self._structs(arrays, null_mask(values), "binary")

    def _parse(self, value: bytes) -> list[bytes | None]:
        """The attributes of a binary form."""
        fields = [field for _, field in fields_of(value)]
        if len(fields) != len(self.fields):
            raise Misshapen
        return fields

    def _structs(self, columns: Sequence[pa.Array], null: Mask, form: str) -> Decoded:
        fields = list(zip(self.fields, columns, strict=True))
        return structs(self.arrow_type, fields, (), null, (self.name, form))


def _quoted(name: str) -> str:
    """A name as in Spark's DDL."""
    return "`" + name.replace("`", "``") + "`"
