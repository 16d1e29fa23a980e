"""bytea, in hexadecimal form and in the escape form (bytea_output = escape)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pgsluice.types.buffers import Int64s, large_binary, offsets_of
from pgsluice.types.codec import ColumnType, Decoded, Spans, malformed, shrink

_BACKSLASH, _X = b"\\x"
_ESCAPED: Final = re.compile(rb"\\(\\|[0-3][0-7]{2})")
_BAD: Final = 255
_ARROW: Final = pa.binary()


def _nibbles() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    table = np.full(256, _BAD, np.uint8)
    for value, digit in enumerate(b"0123456789abcdef"):
        table[digit] = table[bytes([digit]).upper()[0]] = value
    return table


_NIBBLE: Final = _nibbles()


@dataclass(frozen=True, slots=True)
class ByteaType(ColumnType):
    """bytea as binary."""

    name: str = "bytea"
    arrow_type: pa.DataType = _ARROW
    spark_ddl: str = "binary"

    def decode_text(self, values: pa.Array) -> Decoded:
        raw = Spans.of(values)
        hexadecimal = raw.lengths >= 2
        if raw.data.size >= 2:
            at = np.where(hexadecimal, raw.starts, 0)
            hexadecimal &= (raw.data[at] == _BACKSLASH) & (raw.data[at + 1] == _X)
        if raw.null is not None:
            hexadecimal |= raw.null
        if not hexadecimal.all():
            return self._decode_mixed(values, np.flatnonzero(hexadecimal))
        return Decoded(self._decode_hex(raw))

    def _decode_hex(self, raw: Spans) -> pa.Array:
        if raw.lengths.sum() != len(raw.data):  # nulls have bytes
            raw = Spans.of(raw.array())
        raw.refuse(raw.lengths % 2 == 1, self.name)
        rows = np.flatnonzero(raw.lengths)
        prefix = np.zeros(len(raw.data), np.bool_)
        prefix[raw.starts[rows]] = prefix[raw.starts[rows] + 1] = True
        digits = raw.data[~prefix]
        nibbles = _NIBBLE[digits]
        offsets = offsets_of(np.maximum(raw.lengths - 2, 0) // 2)
        if nibbles.size and nibbles.max() == _BAD:
            bad = int(np.argmax(nibbles == _BAD)) // 2
            raise malformed(self.name, int(np.searchsorted(offsets, bad, side="right")) - 1)
        decoded = ((nibbles[0::2] << 4) | nibbles[1::2]).astype(np.uint8)
        return shrink(large_binary(decoded, offsets, raw.null), self.arrow_type, self.name)

    def _decode_mixed(self, values: pa.Array, hexadecimal: Int64s) -> Decoded:
        """Decode rows in escape form one by one, and the others at once."""
        decoded: list[bytes | None] = [
            None if value is None else b"" for value in values.to_pylist()
        ]
        of_hex = self._decode_hex(Spans.of(values.take(pa.array(hexadecimal))))
        for row, value in zip(hexadecimal.tolist(), of_hex.to_pylist(), strict=True):
            decoded[row] = value
        escaped = np.ones(len(values), np.bool_)
        escaped[hexadecimal] = False
        for row in np.flatnonzero(escaped).tolist():
            decoded[row] = _unescape(values[row].as_py(), row)
        return Decoded(pa.array(decoded, self.arrow_type))

    def decode_binary(self, values: pa.Array) -> Decoded:
        return Decoded(shrink(values, self.arrow_type, self.name))


def _unescape(value: bytes, row: int) -> bytes:
    if b"\\" in _ESCAPED.sub(b"", value):
        raise malformed("bytea", row)
    return _ESCAPED.sub(
        lambda match: b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)]), value
    )
