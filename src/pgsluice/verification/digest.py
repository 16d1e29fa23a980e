"""The hash of a row, and the digest of a table's rows.

A row's text is, for its columns in order, ``-`` for NULL and ``<characters>:<text>`` for a
value in the text form of PostgreSQL's output function. The length tells (``a``, ``bc``) from
(``ab``, ``c``), and NULL from the empty text.

A row's hash is MD5 of that text in UTF-8, the only hash that all
versions from 10 on have; two copies of a table are compared, so nobody attacks it. As two 64-bit
numbers it is summed over the rows, modulo 2^64, so that the order of the rows does not matter but,
unlike with XOR, the number of equal rows does.

To find differences without holding a table in memory, rows are put into buckets by the first 32
bits of the MD5 of their key's text, or of the row's text if there is no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_MODULUS = 1 << 64

Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows and the sums of their hashes.

    Attributes:
        rows: how many rows.
        high: sum of the hashes' first 64 bits, modulo 2^64.
        low: sum of their last 64 bits, modulo 2^64.
    """

    rows: int = 0
    high: int = 0
    low: int = 0

    @classmethod
    def of(cls, rows: int, high: int, low: int) -> Digest:
        """A digest of sums of any size and sign."""
        return cls(rows, high % _MODULUS, low % _MODULUS)

    def __add__(self, other: Digest) -> Digest:
        return Digest.of(self.rows + other.rows, self.high + other.high, self.low + other.low)

    @property
    def content_hash(self) -> str:
        """32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


class Side(Protocol):
    """The rows of the source or of the target."""

    def buckets(self, count: int) -> dict[int, Digest]:
        """The digest of each of ``count`` buckets; empty ones may be left out."""

    def rows(self, count: int, chosen: frozenset[int]) -> dict[Key, list[str]]:
        """The hashes of the rows of some of ``count`` buckets, by key.

        The key of a row of a table without key is the row's hash.
        """
