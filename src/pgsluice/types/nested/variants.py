"""json and jsonb as VARIANT, as Delta stores it: a struct of two byte strings.

Equal values of jsonb have equal bytes. A value that VARIANT does not hold exactly is unfit: a
number of more than 38 digits or decimal places, a value that is nested too deeply or too large, an
object with many keys whose order as UTF-8 is not that as UTF-16; of type json also equal keys, the
escape ``\\u0000``, half of a surrogate pair, and an exponent of three digits: what jsonb refuses is
among these.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from pgsluice.types.codec import ColumnType, Decoded, malformed, shrink
from pgsluice.types.nested.variant_format import (
    ARRAY,
    FALSE,
    INT8,
    INT16,
    INT32,
    INT64,
    LONG_STRING,
    LONGEST_SHORT_STRING,
    NULL,
    OBJECT,
    PRIMITIVE,
    SEARCHED,
    SHORT_STRING,
    TRUE,
    decimal_form,
    head_of,
    little_endian,
    metadata_of,
    width_of,
)
from pgsluice.types.options import MAX_PRECISION

ARROW: Final = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
"""No composite is a struct of this type. The byte strings are NULL only in a NULL. In files they
are never NULL (:data:`STORED`), which Arrow's functions do not keep."""
STORED: Final = pa.struct([field.with_nullable(False) for field in ARROW])
"""The type in a Parquet file, which deltalake, too, has for a column of the type ``variant``."""

SIZE_LIMIT: Final = 16 * 2**20
"""In bytes. Spark 4.0 refuses a larger value, and a larger dictionary of names."""
MAX_DEPTH: Final = 500
"""Arrays and objects inside each other; Python's limit of nested calls is 1000."""

_MOST_TEXT: Final = 8 * SIZE_LIMIT
"""In characters: the text of a VARIANT that is small enough is shorter."""
_KEPT_DICTIONARIES, _KEPT_BYTES = 1000, 4096
_MOST: Final = 10**MAX_PRECISION - 1
_INTEGERS: Final = ((INT8, 1), (INT16, 2), (INT32, 4), (INT64, 8))
_LONG_EXPONENT: Final = re.compile(r"[eE][+-]?\d{3}")


class _Unfit(Exception):
    """VARIANT does not hold the value exactly."""


class _Number(NamedTuple):
    """unscaled / 10 ** scale, with the scale that PostgreSQL prints."""

    unscaled: int
    scale: int


@dataclass(frozen=True, slots=True)
class VariantType(ColumnType):
    """json or jsonb as VARIANT; ``text`` is the type that reads the values' text."""

    name: str
    text: ColumnType
    arrow_type: pa.DataType = ARROW
    spark_ddl: str = "variant"

    def decode_text(self, values: pa.Array) -> Decoded:
        return self._encoded(self.text.decode_text(values).values, "text")

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self._encoded(self.text.decode_binary(values).values, "binary")

    @property
    def copies_binary(self) -> bool:
        return self.text.copies_binary

    def _encoded(self, texts: pa.Array, form: str) -> Decoded:
        null = np.ones(len(texts), np.bool_)
        unfit = np.zeros(len(texts), np.bool_)
        pairs: list[tuple[bytes, bytes]] = [(b"", b"")] * len(texts)
        encoder = _Encoder()
        for row, text in enumerate(texts.to_pylist()):
            if text is None:
                continue
            try:
                pairs[row] = encoder.encode(text)
                null[row] = False
            except json.JSONDecodeError:
                # Not chained: the message may contain the value.
                raise malformed(self.name, row, form) from None
            except (_Unfit, RecursionError, ValueError):
                # ValueError: half of a surrogate pair, or a number of thousands of digits.
                unfit[row] = True
        columns = [
            shrink(pa.array(list(part), pa.large_binary()), pa.binary(), self.name)
            for part in (zip(*pairs, strict=True) if pairs else ((), ()))
        ]
        values = pa.StructArray.from_arrays(columns, fields=list(ARROW), mask=pa.array(null))
        return Decoded(values, unfit if unfit.any() else None)


def stored(values: pa.StructArray) -> pa.StructArray:
    """VARIANT values, an array of :data:`ARROW`, in the type :data:`STORED`."""
    parts = [values.field(number).fill_null(b"") for number in range(STORED.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(STORED), mask=values.is_null())


def _number(text: str) -> _Number | int:
    """A number with a fraction or an exponent, with the scale that ``numeric_in`` gives it."""
    if _LONG_EXPONENT.search(text):
        raise _Unfit
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    scale = len(fraction) - int(exponent or "0")
    unscaled = int(whole + fraction) * 10 ** max(0, -scale)
    return _Number(unscaled, scale) if scale > 0 else unscaled


def _refuse_constant(text: str) -> NoReturn:
    """NaN and Infinity are not JSON."""
    raise json.JSONDecodeError("not JSON", "", 0)


class _Encoder:
    """Encodes JSON, one value after the other.

    Rows of a column often have the same keys, so that it keeps the newest dictionaries.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._ids: dict[str, int] = {}
        self._known: dict[frozenset[str], tuple[bytes, dict[str, int]]] = {}
        self._parse = json.JSONDecoder(
            object_pairs_hook=self._object, parse_float=_number, parse_constant=_refuse_constant
        ).decode

    def encode(self, text: str) -> tuple[bytes, bytes]:
        """The metadata and the value; raises json.JSONDecodeError if the text is not JSON, and
        _Unfit, RecursionError or another ValueError if VARIANT does not hold it."""
        # Backslashes that are escaped themselves begin no escape.
        is_too_long = len(text) > _MOST_TEXT
        if is_too_long or ("\\u0000" in text and "\\u0000" in text.replace("\\\\", "  ")):
            raise _Unfit
        self._names.clear()
        parsed = self._parse(text)
        metadata, self._ids = self._dictionary()
        value = self._value(parsed, 0)
        if max(len(value), len(metadata)) > SIZE_LIMIT:
            raise _Unfit
        return metadata, value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise _Unfit
        self._names.update(fields)
        return fields

    def _dictionary(self) -> tuple[bytes, dict[str, int]]:
        """The dictionary of the names of one value, and their numbers."""
        names = frozenset(self._names)
        if len(self._known) > _KEPT_DICTIONARIES:
            self._known.clear()
        if (known := self._known.get(names)) is None:
            # Python orders texts by code points, which is the order of UTF-8.
            in_order = sorted(names)
            metadata = metadata_of([name.encode() for name in in_order])
            known = metadata, {name: number for number, name in enumerate(in_order)}
            if len(metadata) <= _KEPT_BYTES:
                self._known[names] = known
        return known

    def _value(self, value: Any, depth: int) -> bytes:
        # One frame for each level: the depth is limited by Python's limit of nested calls.
        kind = type(value)
        if kind is str:
            return _string(value.encode())
        if kind is int:
            return _integer(value)
        if kind is _Number:
            return _decimal(value)
        if value is None:
            return bytes([NULL])
        if kind is bool:
            return bytes([TRUE if value else FALSE])
        if depth >= MAX_DEPTH:
            raise _Unfit
        if kind is list:
            return _container(ARRAY, [], [*map(self._value, value, repeat(depth + 1))])
        names = sorted(value)
        # Spark would not find all keys where the order as UTF-8, as they are written, is another.
        if len(names) >= SEARCHED and not _have_one_order(names):
            raise _Unfit
        inner = map(value.__getitem__, names)
        parts = [*map(self._value, inner, repeat(depth + 1))]
        return _container(OBJECT, [self._ids[name] for name in names], parts)


def _have_one_order(names: list[str]) -> bool:
    """Whether sorted names are sorted as UTF-16, too."""
    return "".join(names).isascii() or names == sorted(
        names, key=lambda name: name.encode("utf-16-be")
    )


def _string(text: bytes) -> bytes:
    size = len(text)
    if size > SIZE_LIMIT:
        raise _Unfit
    if size <= LONGEST_SHORT_STRING:
        return bytes([size << 2 | SHORT_STRING]) + text
    return bytes([LONG_STRING << 2 | PRIMITIVE]) + size.to_bytes(4, "little") + text


def _integer(number: int) -> bytes:
    for code, width in _INTEGERS:
        if -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1:
            return bytes([code << 2 | PRIMITIVE]) + number.to_bytes(width, "little", signed=True)
    return _decimal(_Number(number, 0))


def _decimal(number: _Number) -> bytes:
    unscaled, scale = number
    if abs(unscaled) > _MOST or scale > MAX_PRECISION:
        raise _Unfit
    code, width = decimal_form(max(len(str(abs(unscaled))), scale))
    return bytes([code << 2 | PRIMITIVE, scale]) + unscaled.to_bytes(width, "little", signed=True)


def _container(kind: int, ids: list[int], parts: list[bytes]) -> bytes:
    """An array, or an object whose fields have these numbers of names, in the order of names."""
    offsets = list(accumulate(map(len, parts), initial=0))
    if offsets[-1] > SIZE_LIMIT:
        raise _Unfit
    width, id_width = width_of(offsets[-1]), width_of(ids[-1] if ids else 0)
    head = head_of(kind, len(parts), width, ids, id_width)
    return head + little_endian(offsets, width) + b"".join(parts)
