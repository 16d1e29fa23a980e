"""The type of a column whose values are masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pgsluice.masks import ColumnMask, MaskKind
from pgsluice.types.codec import ColumnType, Decoded

_ARROW: Final = pa.string()


@dataclass(frozen=True, slots=True)
class MaskedType(ColumnType):
    """A string: the masked text of a value of any type.

    Attributes:
        printed: the type that maps values to their text.
    """

    name: str
    printed: ColumnType
    mask: ColumnMask
    arrow_type: pa.DataType = _ARROW
    spark_ddl: str = "string"

    def decode_text(self, values: pa.Array) -> Decoded:
        if self._is_null:
            return Decoded(pa.nulls(len(values), self.arrow_type))
        return Decoded(self.mask.apply(self.printed.decode_text(values).values))

    def decode_binary(self, values: pa.Array) -> Decoded:
        if self._is_null:
            return Decoded(pa.nulls(len(values), self.arrow_type))
        return Decoded(self.mask.apply(self.printed.decode_binary(values).values))

    @property
    def reads_binary(self) -> bool:
        return self._is_null or self.printed.reads_binary

    @property
    def copies_binary(self) -> bool:
        return self.printed.copies_binary

    @property
    def is_masked(self) -> bool:
        return True

    @property
    def tells_values_apart(self) -> bool:
        return self.mask.tells_values_apart

    def encode_text(self, array: pa.Array) -> pa.Array:
        return array.cast(pa.large_string())

    @property
    def _is_null(self) -> bool:
        return self.mask.kind is MaskKind.NULL
