"""Types of widely used extensions, found by name: hstore, citext, ltree and pgvector's three.

Source: contrib/hstore/hstore_io.c, contrib/ltree/ltree_io.c, pgvector's vector.c, halfvec.c,
sparsevec.c.
"""

from __future__ import annotations

import struct
from typing import Final

from pgsluice.types.binary_to_text.cursor import Cursor, Printer
from pgsluice.types.binary_to_text.floats import format_float4
from pgsluice.types.binary_to_text.scalars import print_text, print_versioned


def print_hstore(value: bytes) -> str:
    """Text of an hstore, as hstore_out prints it: ``"key"=>"value", "other"=>NULL``."""
    pairs = (
        f"{_quoted(key)}=>{'NULL' if item is None else _quoted(item)}"
        for key, item in pairs_of(value)
    )
    return ", ".join(pairs)


def pairs_of(value: bytes) -> list[tuple[bytes, bytes | None]]:
    """The keys and values of an hstore, as hstore_send writes it."""
    cursor = Cursor(value)
    pairs = [(cursor.present(), cursor.sized()) for _ in range(cursor.count())]
    cursor.close()
    return pairs


def _quoted(text: bytes) -> str:
    return '"' + text.decode().replace("\\", "\\\\").replace('"', '\\"') + '"'


def print_vector(value: bytes) -> str:
    """Text of a vector, as pgvector's vector_out prints it: ``[1,2.5]``."""
    return _print_dense(value, "f")


def print_halfvec(value: bytes) -> str:
    """halfvec_out: each half-precision number is printed as a float4."""
    return _print_dense(value, "e")


def _print_dense(value: bytes, kind: str) -> str:
    cursor = Cursor(value)
    size, _ = cursor.unsigned(2), cursor.unsigned(2)
    numbers = struct.unpack(f">{size}{kind}", cursor.take(size * struct.calcsize(kind)))
    cursor.close()
    return "[" + ",".join(map(format_float4, numbers)) + "]"


def print_sparsevec(value: bytes) -> str:
    """sparsevec_out: ``{1:1.5,3:2}/5``; the binary form counts indices from 0."""
    cursor = Cursor(value)
    size, count, _ = cursor.number(4), cursor.count(), cursor.number(4)
    indices = struct.unpack(f">{count}i", cursor.take(4 * count))
    numbers = struct.unpack(f">{count}f", cursor.take(4 * count))
    cursor.close()
    pairs = (f"{i + 1}:{format_float4(n)}" for i, n in zip(indices, numbers, strict=True))
    return "{" + ",".join(pairs) + "}/" + str(size)


EXTENSION_PRINTERS: Final[dict[str, Printer]] = {
    "hstore": print_hstore,
    "citext": print_text,
    "ltree": print_versioned,
    "lquery": print_versioned,
    "ltxtquery": print_versioned,
    "vector": print_vector,
    "halfvec": print_halfvec,
    "sparsevec": print_sparsevec,
}
