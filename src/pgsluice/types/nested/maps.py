"""hstore as a map of texts, in the order in which the server prints its pairs.

In text form keys and values are quoted, with a backslash before quotes and backslashes:
``"a"=>"1", "b"=>NULL``. Values are read one after the other, in both forms. Source:
contrib/hstore/hstore_io.c (``hstore_out``, ``hstore_send``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from pgsluice.types.binary_to_text.cursor import Misshapen
from pgsluice.types.binary_to_text.extensions import pairs_of
from pgsluice.types.buffers import fixed_width, offsets_of
from pgsluice.types.codec import ColumnType, Decoded, as_text, parsed, shrink

_ARROW: Final = pa.map_(pa.string(), pa.string())
_QUOTED: Final = rb'"((?:[^"\\]|\\.)*+)"'
_PAIR: Final = re.compile(_QUOTED + rb"=>(?:" + _QUOTED + rb"|NULL)(, (?=\")|$)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)

Pairs = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True)
class MapType(ColumnType):
    """hstore as map<string,string>."""

    name: str
    arrow_type: pa.DataType = _ARROW
    spark_ddl: str = "map<string,string>"

    copies_binary: ClassVar[bool] = False  # the server prints it faster

    def decode_text(self, values: pa.Array) -> Decoded:
        return self._maps(parsed(values, _pairs_of_text, self.name, "text"))

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self._maps(parsed(values, pairs_of, self.name))

    def _maps(self, rows: Sequence[Pairs | None]) -> Decoded:
        parts = [part for row in rows for pair in row or () for part in pair]
        texts = as_text(pa.array(parts, pa.large_binary()), self.name)
        texts = shrink(texts, pa.string(), self.name)
        keys, items = (texts.take(pa.array(np.arange(at, len(texts), 2))) for at in (0, 1))
        offsets = offsets_of(np.array([len(row or ()) for row in rows], np.int64))
        null = np.array([*(row is None for row in rows), False])
        offsets = fixed_width(offsets.astype(np.int32), pa.int32(), null)
        return Decoded(pa.MapArray.from_arrays(offsets, keys, items))


def _pairs_of_text(value: bytes) -> Pairs:
    """The keys and values of a text form."""
    pairs: Pairs = []
    at = 0
    while at < len(value):
        pair = _PAIR.match(value, at)
        if pair is None:
            raise Misshapen
        key, item = pair.group(1, 2)
        pairs.append((_unescaped(key), None if item is None else _unescaped(item)))
        at = pair.end()
    return pairs


def _unescaped(text: bytes) -> bytes:
    return _ESCAPED.sub(rb"\1", text)
