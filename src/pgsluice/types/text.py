"""Types that map to a string: text, every type without an equivalent in Arrow and Spark, and masks
of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from pgsluice.masks import ColumnMask, MaskKind
from pgsluice.types.binary_to_text import NoTextForm, Printer
from pgsluice.types.buffers import large_binary
from pgsluice.types.codec import ColumnType, Decoded, Spans, as_text, parsed, shrink

_ARROW: Final = pa.string()
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True)
class PrintedType(ColumnType):
    """A type whose text form is kept as a string.

    Attributes:
        printer: prints that text from the binary form; None when that cannot be done (only the
            server knows the name of a ``regclass``'s OID).
    """

    name: str
    arrow_type: pa.DataType = _ARROW
    spark_ddl: str = "string"
    printer: Printer | None = None

    def decode_text(self, values: pa.Array) -> Decoded:
        return Decoded(shrink(as_text(values, self.name), self.arrow_type, self.name))

    def decode_binary(self, values: pa.Array) -> Decoded:
        return Decoded(pa.array(parsed(values, self._print, self.name), self.arrow_type))

    def _print(self, value: bytes) -> str:
        if self.printer is None:
            raise NoTextForm(self.name)
        return self.printer(value)

    @property
    def reads_binary(self) -> bool:
        return self.printer is not None

    @property
    def copies_binary(self) -> bool:
        return False  # the printer prints one value after the other


@dataclass(frozen=True, slots=True)
class TextType(PrintedType):
    """text, varchar, bpchar, name, json, xml, enums: the binary form is the text.

    The trailing blanks of char(n) are kept.
    """

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self.decode_text(values)

    def decode_spans(self, values: Spans) -> Decoded:
        return Decoded(values.strings(self.name))

    reads_binary: ClassVar[bool] = True

    @property
    def copies_binary(self) -> bool:
        return self.name != "xml"  # its binary form names an encoding, its text does not


@dataclass(frozen=True, slots=True)
class ComputedTextType(PrintedType):
    """A type whose text is computed from its binary form, whole columns at a time."""

    decode_binary = ColumnType.decode_binary
    reads_binary: ClassVar[bool] = True
    copies_binary: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JsonbType(TextType):
    """jsonb and jsonpath: their binary form is a version byte, 1, and the text."""

    decode_binary = ColumnType.decode_binary

    def decode_spans(self, values: Spans) -> Decoded:
        there = slice(None) if values.null is None else np.flatnonzero(~values.null)
        starts, lengths = values.starts.copy(), values.lengths.copy()
        versions = np.ones(len(starts), np.uint8)
        values.refuse(lengths == 0, self.name, "binary")
        versions[there] = values.data[starts[there]]
        values.refuse(versions != 1, self.name, "binary")
        starts[there] += 1
        lengths[there] -= 1
        return Decoded(Spans(values.data, starts, lengths, values.null).strings(self.name))


@dataclass(frozen=True, slots=True)
class UuidType(ComputedTextType):
    """uuid, as 8-4-4-4-12 hexadecimal digits in lower case."""

    def decode_spans(self, values: Spans) -> Decoded:
        matrix = values.of_width(16, self.name)
        count = len(matrix)
        digits = np.empty((count, 32), np.uint8)
        digits[:, 0::2] = _HEX[matrix >> 4]
        digits[:, 1::2] = _HEX[matrix & 15]
        printed = np.full((count, 36), ord("-"), np.uint8)
        at = 0
        for place, size in ((0, 8), (9, 4), (14, 4), (19, 4), (24, 12)):
            printed[:, place : place + size] = digits[:, at : at + size]
            at += size
        offsets = np.arange(count + 1) * 36
        return self.decode_text(large_binary(printed.reshape(-1), offsets, values.null))

    copies_binary: ClassVar[bool] = False  # the server prints it faster


@dataclass(frozen=True, slots=True)
class MaskedType(ColumnType):
    """A string: the masked text of a value of any type, which ``printed`` maps to its text."""

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

    @property
    def _is_null(self) -> bool:
        return self.mask.kind is MaskKind.NULL
