"""Arrays of one dimension, mapped to lists of their elements' type.

The text form ``{a,"b c",NULL}`` of a whole column is split at once: running counts over all bytes
find the quotations, the escaping backslashes, and the ends of elements. An array is unfit if
list<T> cannot hold it: more than one dimension, a first index other than 1, or an unfit element. A
single array of megabytes, in either form, is decoded in pieces, because the intermediate data of
each byte or element needs many times their memory. Source: src/backend/utils/adt/arrayfuncs.c
(``array_out``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import ConversionError
from pgsluice.types.array_binary import LONG_BYTES, pieces_of_array, split_arrays
from pgsluice.types.buffers import (
    Bytes,
    Int64s,
    Mask,
    blank,
    content_of,
    first_row,
    large_binary,
    null_mask,
    offsets_of,
    to_mask,
)
from pgsluice.types.codec import ColumnType, Decoded, Spans, in_container, malformed

_OPEN, _CLOSE, _QUOTE, _BACKSLASH = b'{}"\\'
_BOUNDS: Final = r"^(\[-?[0-9]+:-?[0-9]+\])+=\{"
_NULL: Final = np.frombuffer(b"NULL", np.uint8)
PIECE_BYTES: Final = 2**20
"""A long array's text is split in pieces of this size."""


@dataclass(frozen=True, slots=True)
class ListType(ColumnType):
    """An array as list<element>. A comma is the delimiter between elements of all built-in types
    but box."""

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    element: ColumnType
    delimiter: str

    @classmethod
    def of(cls, element: ColumnType, delimiter: str = ",") -> ListType:
        return cls(
            f"{element.name}[]",
            pa.list_(element.arrow_type),
            f"array<{element.spark_ddl}>",
            element,
            delimiter,
        )

    def decode_text(self, values: pa.Array) -> Decoded:
        if (pieces := self._pieces_of_text(values)) is not None:
            return self._joined(pieces, "text")
        unfit = self._bounded(values) | self._nested(values)
        plain = blank(values, unfit) if unfit.any() else values
        null = null_mask(plain)
        rows = Spans.of(plain.fill_null(b"{}") if null.any() else plain)
        elements, offsets = self._split(rows)
        return self._lists(elements, offsets, null, "text", unfit)

    def _bounded(self, values: pa.Array) -> Mask:
        """Rows with explicit bounds, ``[0:1]={7,8}``: their first index is not 1."""
        if not (content_of(values)[1] == ord("[")).any():
            return np.zeros(len(values), np.bool_)
        return to_mask(pc.match_substring_regex(values, _BOUNDS))

    def _nested(self, values: pa.Array) -> Mask:
        """Rows of more than one dimension: only those begin with ``{{``."""
        return to_mask(pc.starts_with(values, pattern=b"{{"))

    def _split(self, rows: Spans) -> tuple[pa.Array, Int64s]:
        """The elements of all rows as LargeBinary, and the n + 1 offsets of the rows in them."""
        data, starts, ends = rows.data, rows.starts, rows.ends
        if not len(starts):
            return pa.array([], pa.large_binary()), np.zeros(1, np.int64)
        rows.refuse(rows.lengths < 2, self.name)
        rows.refuse((data[starts] != _OPEN) | (data[ends - 1] != _CLOSE), self.name)
        quote, escaping, inside, bare = _marks(data)
        rows.refuse(inside[ends - 1], self.name)
        brace = bare & ((data == _OPEN) | (data == _CLOSE))
        brace[starts] = brace[ends - 1] = False
        odd = brace | (escaping & ~inside)
        if odd.any():
            raise self._malformed_at(rows, first_row(odd))

        separator = bare & (data == ord(self.delimiter))
        keep = ~(quote | escaping | separator)
        keep[starts] = keep[ends - 1] = False
        filled = rows.lengths > 2
        before, behind = separator, separator.copy()
        before[starts[filled]] = behind[ends[filled] - 1] = True
        first, last = np.flatnonzero(before) + 1, np.flatnonzero(behind)
        elements = self._elements(rows, first, last, quote, keep)
        return elements, np.searchsorted(first, rows.offsets)

    def _pieces_of_text(self, values: pa.Array) -> Iterator[pa.Array] | None:
        """The elements of a single long array, some at a time; None: it is not one."""
        text = content_of(values)[1]
        if len(values) != 1 or values.null_count or len(text) < LONG_BYTES:
            return None
        if text[0] != _OPEN or text[1] == _OPEN or text[-1] != _CLOSE:
            return None
        return self._pieces(text[1:-1])

    def _pieces(self, text: Bytes) -> Iterator[pa.Array]:
        begin, size = 0, PIECE_BYTES
        while begin <= len(text):
            end = min(begin + size, len(text))
            if end < len(text):
                window = text[begin:end]
                bare = _marks(window)[-1]
                separators = np.flatnonzero(bare & (window == ord(self.delimiter)))
                if not len(separators):  # an element is longer
                    size *= 2
                    continue
                end = begin + int(separators[-1])
            if end == begin:
                raise malformed(self.name, 0)
            piece = np.pad(text[begin:end], 1)
            piece[0], piece[-1] = _OPEN, _CLOSE
            yield self._split(Spans(piece, np.zeros(1, np.int64), np.array([len(piece)]), None))[0]
            begin, size = end + 1, PIECE_BYTES

    def _joined(self, pieces: Iterator[pa.Array], form: str) -> Decoded:
        """Join the elements of a single array, which come in pieces."""
        no = np.zeros(1, np.bool_)
        lists = [self._lists(each, np.array([0, len(each)]), no, form) for each in pieces]
        if any(part.unfit is not None for part in lists):
            return Decoded(pa.nulls(1, self.arrow_type), ~no)
        values = pa.concat_arrays([part.values.values for part in lists])
        return self._assemble(Decoded(values), np.array([0, len(values)]), no, no)

    def _elements(
        self, rows: Spans, first: Int64s, last: Int64s, quote: Mask, keep: Mask
    ) -> pa.Array:
        """The elements ``data[first:last]``, of which only the bytes in ``keep`` count."""
        data = rows.data
        quotes = offsets_of(quote)
        within = quotes[last] - quotes[first]
        empty = last <= first
        at_first = np.where(empty, 0, first)
        is_quoted = ~empty & quote[at_first] & quote[np.where(empty, 0, last - 1)] & (within == 2)
        bad = empty | (~is_quoted & (within != 0))
        if bad.any():
            raise self._malformed_at(rows, int(first[first_row(bad)]) - 1)
        of_its_length = np.flatnonzero(~is_quoted & (last - first == len(_NULL)))
        spelt = data[first[of_its_length, None] + np.arange(len(_NULL))] == _NULL
        is_null = np.zeros(len(first), np.bool_)
        is_null[of_its_length[spelt.all(axis=1)]] = True
        kept = offsets_of(keep)
        return large_binary(data[keep], np.append(kept[first], kept[-1]), is_null)

    def _malformed_at(self, rows: Spans, byte: int) -> ConversionError:
        return malformed(self.name, int(np.searchsorted(rows.starts, byte, "right")) - 1)

    def _lists(
        self, elements: pa.Array, offsets: Int64s, null: Mask, form: str, unfit: Mask | None = None
    ) -> Decoded:
        """Decode the elements of n lists, of which some are NULL and some are known to be unfit."""
        decode = self.element.decode_text if form == "text" else self.element.decode_binary
        try:
            decoded = decode(elements)
        except ConversionError as error:
            raise in_container(error, self.name, form, offsets) from None
        return self._assemble(
            decoded, offsets, null, np.zeros_like(null) if unfit is None else unfit
        )

    def _assemble(self, elements: Decoded, offsets: Int64s, null: Mask, unfit: Mask) -> Decoded:
        if elements.unfit is not None:
            before = offsets_of(elements.unfit)
            unfit = unfit | (before[offsets[1:]] > before[offsets[:-1]])
        lists = pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)),
            elements.values,
            type=self.arrow_type,
            mask=pa.array(null | unfit),
        )
        return Decoded(lists, unfit if unfit.any() else None)

    def decode_binary(self, values: pa.Array) -> Decoded:
        if (pieces := pieces_of_array(values, self.name)) is not None:
            return self._joined(pieces, "binary")
        split = split_arrays(values, self.name)
        return self._lists(split.elements, split.offsets, null_mask(values), "binary", split.unfit)

    @property
    def reads_binary(self) -> bool:
        return self.element.reads_binary

    @property
    def copies_binary(self) -> bool:
        return self.element.copies_binary

    @property
    def tells_values_apart(self) -> bool:
        return self.element.tells_values_apart


def _marks(data: Bytes) -> tuple[Mask, Mask, Mask, Mask]:
    """Which bytes are quotes, which escape the next one, which are inside quotations, and which are
    outside and unescaped. The first byte is outside of a quotation."""
    escaping = _escaping(data)
    escaped = _after(escaping)
    quote = (data == _QUOTE) & ~escaped
    inside = np.cumsum(quote, dtype=np.uint8) % 2 == 1  # overflow keeps the parity
    return quote, escaping, inside, ~(inside | escaped)


def _after(mask: Mask) -> Mask:
    """True for a byte whose predecessor is in the mask."""
    shifted = np.zeros(len(mask), np.bool_)
    shifted[1:] = mask[:-1]
    return shifted


def _escaping(data: Bytes) -> Mask:
    """Backslashes that escape the next byte: every other one of a run, from its first."""
    backslash: Mask = data == _BACKSLASH
    if not backslash.any():
        return backslash
    places = np.arange(len(data))
    before_run = np.maximum.accumulate(np.where(backslash, -1, places))
    escaping: Mask = backslash & ((places - before_run) % 2 == 1)
    return escaping
