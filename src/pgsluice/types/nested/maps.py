"""hstore as a map of texts, in the order in which the server prints its pairs.

In text form keys and values are quoted, with a backslash before quotes and backslashes:
``"a"=>"1", "b"=>NULL``. Values are read one after the other, in both forms. Source:
contrib/hstore/hstore_io.c (``hstore_out``, ``hstore_send``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.binary_to_text.cursor import Cursor, Misshapen
from pgsluice.types.buffers import fixed_width, null_mask, offsets_of
from pgsluice.types.codec import ColumnType, Decoded, as_text, malformed, shrink
from pgsluice.types.nested.fields import joined

_TEXT: Final = pa.large_string()
_ARROW: Final = pa.map_(pa.string(), pa.string())
_QUOTED: Final = rb'"((?:[^"\\]|\\.)*+)"'
_PAIR: Final = re.compile(_QUOTED + rb"=>(?:" + _QUOTED + rb"|NULL)(, (?=\")|$)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)

Parts = list[bytes | None]


@dataclass(frozen=True, slots=True)
class MapType(ColumnType):
    """hstore as map<string,string>."""

    name: str
    arrow_type: pa.DataType = _ARROW
    spark_ddl: str = "map<string,string>"

    copies_binary: ClassVar[bool] = False  # the server prints it faster

    def decode_text(self, values: pa.Array) -> Decoded:
        return self._decode(values, _parts_of_text, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self._decode(values, _parts_of_binary, "binary")

    def _decode(self, values: pa.Array, parse: Callable[[bytes], Parts], form: str) -> Decoded:
        parts: Parts = []
        counts = np.zeros(len(values), np.int64)
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                some = parse(value)
            except Misshapen:
                raise malformed(self.name, row, form) from None
            counts[row] = len(some) // 2
            parts += some
        texts = as_text(pa.array(parts, pa.large_binary()), self.name)
        texts = shrink(texts, pa.string(), self.name)
        keys, items = (texts.take(pa.array(np.arange(at, len(texts), 2))) for at in (0, 1))
        null = np.append(null_mask(values), False)
        offsets = fixed_width(offsets_of(counts).astype(np.int32), pa.int32(), null)
        return Decoded(pa.MapArray.from_arrays(offsets, keys, items))

    def encode_text(self, array: pa.Array) -> pa.Array:
        keys, items = (_quoted(part) for part in (array.keys, array.items))
        pairs = joined(keys, "=>", items.fill_null("NULL"))
        offsets = array.offsets.to_numpy().astype(np.int64)
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pairs)
        text = pc.binary_join(lists, pa.scalar(", ", _TEXT))
        return pc.if_else(array.is_valid(), text, pa.scalar(None, _TEXT))


def _quoted(texts: pa.Array) -> pa.Array:
    texts = texts.cast(_TEXT)
    for special in ("\\", '"'):
        texts = pc.replace_substring(texts, special, "\\" + special)
    return joined('"', texts, '"')


def _parts_of_text(value: bytes) -> Parts:
    """The keys and values of a text form, alternately."""
    parts: Parts = []
    at = 0
    while at < len(value):
        pair = _PAIR.match(value, at)
        if pair is None:
            raise Misshapen
        parts += [None if part is None else _ESCAPED.sub(rb"\1", part) for part in pair.group(1, 2)]
        at = pair.end()
    return parts


def _parts_of_binary(value: bytes) -> Parts:
    """The keys and values of a binary form, alternately."""
    cursor = Cursor(value)
    parts: Parts = []
    for _ in range(cursor.number(4)):
        key = cursor.sized()
        if key is None:
            raise Misshapen
        parts += [key, cursor.sized()]
    cursor.close()
    return parts
