"""What both sides hash, and how rows become one digest of a table.

A row's text is, for its columns in order, ``-`` for NULL and ``<characters>:<text>`` for a
value in the text form of PostgreSQL's output function. The length in front keeps apart what
would otherwise run together: (``a``, ``bc``) from (``ab``, ``c``), NULL from the empty text.

A row's hash is MD5 of that text in UTF-8, the one hash that PostgreSQL has had in all
versions from 10 on; nobody attacks here, two copies of a table are compared. Read as two
numbers of 64 bits it is summed over the rows, modulo 2^64, so that the order of the rows does
not matter, and, unlike with XOR, how often a row is there does.

To find what differs without holding a table in memory, rows fall into buckets by the first
32 bits of MD5 of their key's text (of the row's where there is no key).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_MODULUS = 1 << 64

Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """Rows and their hashes, summed.

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
        """Take sums of any size or sign."""
        return cls(rows, high % _MODULUS, low % _MODULUS)

    def __add__(self, other: Digest) -> Digest:
        return Digest.of(self.rows + other.rows, self.high + other.high, self.low + other.low)

    @property
    def content_hash(self) -> str:
        """32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


class Side(Protocol):
    """What the source and the target each can say of their rows."""

    def digest(self) -> Digest:
        """All rows."""

    def buckets(self, count: int) -> dict[int, Digest]:
        """The rows of each of ``count`` buckets; empty ones may be left out."""

    def rows(self, count: int, chosen: frozenset[int]) -> dict[Key, list[str]]:
        """The rows of some of ``count`` buckets: key -> hash of every row that has it.

        The key of a row of a table without key is the row's hash.
        """
