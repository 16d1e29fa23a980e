"""The hash functions of hash indexes and partitions: hashtext, hashint8 and others.

The values are those of servers on little-endian machines. Every computation is written once, for
Python's integers and for numpy's 64-bit arrays: all results are cut to 32 bits.
Source: src/common/hashfn.c (hash_bytes, after Bob Jenkins' lookup3), hashfunc.c.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.row_filter.kernels.kernel import Compute, Site, register, sited
from pgsluice.row_filter.kernels.texts.letters import encoder
from pgsluice.types.buffers import content_of

Word: TypeAlias = Any
"""A Python integer, or a numpy array of unsigned 64-bit integers; below 2**32."""
Words: TypeAlias = tuple[Word, Word, Word]

_MASK: Final = 0xFFFFFFFF
_START: Final = 0x9E3779B9 + 3923095


def _rotated(word: Word, by: int) -> Word:
    return ((word << by) | (word >> (32 - by))) & _MASK


def _mixed(a: Word, b: Word, c: Word) -> Words:
    a = ((a - c) & _MASK) ^ _rotated(c, 4)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rotated(a, 6)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rotated(b, 8)
    b = (b + a) & _MASK
    a = ((a - c) & _MASK) ^ _rotated(c, 16)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rotated(a, 19)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rotated(b, 4)
    return a, (b + a) & _MASK, c


def _final(a: Word, b: Word, c: Word) -> Words:
    c = ((c ^ b) - _rotated(b, 14)) & _MASK
    a = ((a ^ c) - _rotated(c, 11)) & _MASK
    b = ((b ^ a) - _rotated(a, 25)) & _MASK
    c = ((c ^ b) - _rotated(b, 16)) & _MASK
    a = ((a ^ c) - _rotated(c, 4)) & _MASK
    b = ((b ^ a) - _rotated(a, 14)) & _MASK
    return a, b, ((c ^ b) - _rotated(b, 24)) & _MASK


def _started(length: int, seed: int) -> Words:
    start = (_START + length) & _MASK
    if not seed:
        return start, start, start
    unsigned = seed % 2**64
    return _mixed((start + (unsigned >> 32)) & _MASK, (start + unsigned) & _MASK, start)


def _hashed(words: list[Word], length: int, seed: int) -> Words:
    """Hash bytes, as little-endian words with zeros after the last; ``length`` counts bytes."""
    a, b, c = _started(length, seed)
    place = 0
    while length - 4 * place >= 12:
        added = [(x + y) & _MASK for x, y in zip((a, b, c), words[place : place + 3], strict=True)]
        a, b, c = _mixed(*added)
        place += 3
    rest = [*words[place:], 0, 0, 0][:3]
    # the lowest byte of the last word is the length's
    return _final((a + rest[0]) & _MASK, (b + rest[1]) & _MASK, (c + (rest[2] << 8)) & _MASK)


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


def _result(words: Words, is_extended: bool) -> int:
    _, b, c = words
    return _signed(int(b) << 32 | int(c), 64) if is_extended else _signed(int(c), 32)


def hash_bytes(data: bytes, seed: int | None = None) -> int:
    """PostgreSQL's hash_bytes() of some bytes; with a seed, hash_bytes_extended()."""
    padded = data.ljust(-(-len(data) // 4) * 4, b"\0")
    words: list[Word] = list(struct.unpack(f"<{len(padded) // 4}I", padded))
    return _result(_hashed(words, len(data), seed or 0), seed is not None)


def _hash_word(word: Word, seed: int = 0) -> Words:
    """hash_bytes_uint32."""
    a, b, c = _started(4, seed)
    return _final((a + word) & _MASK, b, c)


def _word_of_int8(number: int) -> int:
    """Both halves in one word, so that small numbers hash as those of the narrower types."""
    low, high = number & _MASK, number >> 32 & _MASK
    return low ^ (high if number >= 0 else high ^ _MASK)


def _register_words(name: str, type_name: str, word: Callable[[Any], int]) -> None:
    extended = f"{name}_extended" if name.endswith("_hash") else f"{name}extended"
    register(f"{name}({type_name})", lambda value: _result(_hash_word(word(value)), False))
    register(
        f"{extended}({type_name},int8)",
        lambda value, seed: _result(_hash_word(word(value), seed), True),
    )


for _name, _type in (("hashint2", "int2"), ("hashint4", "int4"), ("hashoid", "oid")):
    _register_words(_name, _type, lambda number: number & _MASK)
_register_words("hashint8", "int8", _word_of_int8)
_register_words("hashdate", "date", lambda day: day & _MASK)
_register_words("hashbool", "bool", int)
_register_words("hashchar", "char", lambda byte: _signed(byte, 8) & _MASK)
for _type in ("timestamp", "timestamptz", "time"):
    _register_words(f"{_type}_hash", _type, _word_of_int8)


def _of_bytes(bytes_of: Callable[[Site], Callable[[Any], bytes]]) -> Callable[[Site], Compute]:
    def make(site: Site) -> Compute:
        read = bytes_of(site)
        return lambda value, seed=None: hash_bytes(read(value), seed)

    return make


def _register_bytes(name: str, type_name: str, make: Callable[[Site], Compute]) -> None:
    extended = f"{name}_extended" if name.endswith("_hash") else f"{name}extended"
    sited(f"{name}({type_name})")(make)
    sited(f"{extended}({type_name},int8)")(make)


def _unblanked(site: Site) -> Callable[[str], bytes]:
    encode = encoder(site)
    return lambda text: encode(text.rstrip(" "))


_register_bytes("hashtext", "text", _of_bytes(encoder))
_register_bytes("hashname", "name", _of_bytes(encoder))
_register_bytes("hashbpchar", "bpchar", _of_bytes(_unblanked))
_register_bytes("hashbytea", "bytea", _of_bytes(lambda site: bytes))
_register_bytes("uuid_hash", "uuid", _of_bytes(lambda site: lambda text: UUID(text).bytes))


def _of_float(number: float, seed: int | None = None) -> int:
    """Zero and NaN have one hash each, with both signs."""
    if not number:
        return seed or 0
    return hash_bytes(struct.pack("<d", math.nan if math.isnan(number) else number), seed)


for _name, _type in (("hashfloat4", "float4"), ("hashfloat8", "float8")):
    _register_bytes(_name, _type, lambda site: _of_float)


# Whole columns


def hash_texts(array: pa.LargeStringArray | pa.LargeBinaryArray) -> npt.NDArray[np.int32]:
    """hashtext() of each value's bytes; the result for NULL is arbitrary."""
    offsets, data = content_of(array)
    lengths = np.diff(offsets)
    hashes = np.zeros(len(array), np.uint64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        padded = np.zeros((len(rows), -(-int(length) // 4) * 4), np.uint8)
        padded[:, :length] = data[offsets[rows][:, None] + np.arange(length)]
        words = padded.view("<u4").astype(np.uint64)
        columns = [words[:, place] for place in range(words.shape[1])]
        hashes[rows] = _hashed(columns, int(length), 0)[2]
    return hashes.astype(np.uint32).view(np.int32)


def hash_integers(numbers: npt.NDArray[np.int64], *, is_wide: bool) -> npt.NDArray[np.int32]:
    """hashint4() or, if it is wide, hashint8() of each number."""
    word = numbers.astype(np.uint64)
    low, high = word & _MASK, word >> np.uint64(32)
    folded = low ^ np.where(numbers >= 0, high, high ^ np.uint64(_MASK)) if is_wide else low
    return np.asarray(_hash_word(folded)[2]).astype(np.uint32).view(np.int32)
