"""inet, cidr and the two macaddr.

Source: src/backend/utils/adt/network.c, inet_net_ntop.c, mac.c, mac8.c.
"""

from __future__ import annotations

import struct

from pgsluice.types.binary_to_text.cursor import Cursor, Misshapen

_FAMILIES = {2: 4, 3: 16}
"""The server's number of each address family, and the size of its addresses in bytes."""


def print_inet(value: bytes) -> str:
    """inet_out and cidr_out: a cidr always has ``/n``, an inet only if it is not one host."""
    cursor = Cursor(value)
    family, bits = cursor.unsigned(1), cursor.unsigned(1)
    is_cidr, size = cursor.unsigned(1), cursor.unsigned(1)
    if _FAMILIES.get(family) != size or bits > 8 * size or is_cidr > 1:
        raise Misshapen
    packed = cursor.take(size)
    cursor.close()
    address = _print_v4(packed) if size == 4 else _print_v6(packed)
    return f"{address}/{bits}" if is_cidr or bits < 8 * size else address


def _print_v4(packed: bytes) -> str:
    return ".".join(map(str, packed))


def _print_v6(packed: bytes) -> str:
    """Print the longest run of zeros as ``::``, and IPv4 inside IPv6 in IPv4's form."""
    words = struct.unpack(">8H", packed)
    begin, length = _longest_zeros(words)
    holds_v4 = begin == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF))
    texts = [f"{word:x}" for word in words]
    if holds_v4:
        texts[6:] = [_print_v4(packed[12:])]
    if length < 2:
        return ":".join(texts)
    return f"{':'.join(texts[:begin])}::{':'.join(texts[begin + length :])}"


def _longest_zeros(words: tuple[int, ...]) -> tuple[int, int]:
    """The index and the length of the first of the longest runs of zeros."""
    best = (0, 0)
    begin = 0
    for at, word in enumerate((*words, 1)):
        if word:
            if at - begin > best[1]:
                best = (begin, at - begin)
            begin = at + 1
    return best


def print_macaddr(value: bytes) -> str:
    """Text of a value, as PostgreSQL's macaddr_out prints it, from its binary form."""
    if len(value) != 6:
        raise Misshapen
    return value.hex(":")


def print_macaddr8(value: bytes) -> str:
    """Text of a value, as PostgreSQL's macaddr8_out prints it, from its binary form."""
    if len(value) != 8:
        raise Misshapen
    return value.hex(":")
