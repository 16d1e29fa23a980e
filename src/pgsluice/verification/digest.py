"""The hash of a row, and the digest of a table's rows.

A row's text is, for its columns in order, ``-`` for NULL and ``<characters>:<text>`` for a value in
the text form of PostgreSQL's output function. The length distinguishes (``a``, ``bc``) from
(``ab``, ``c``), and ``-`` distinguishes NULL from the empty text.

A row's hash is MD5 of that text in UTF-8, the only hash in all versions from 10 on; security does
not matter here. The hashes are summed over the rows as two 64-bit numbers, modulo 2^64. So the
order of the rows does not matter but, unlike with XOR, the number of equal rows does.

To find differences in bounded memory, rows are divided into buckets by the first 32 bits of the MD5
of their key's text, or of the row's text if there is no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MODULUS = 1 << 64

Mask = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]

Key = tuple[str | None, ...]
"""The texts of a key's columns; of a row without a key, the first :data:`MOST_KEPT` characters of
each of its values."""
MOST_SHOWN = 40
"""In characters; a longer value of such a row is cut where it is shown."""
MOST_KEPT = MOST_SHOWN + 1


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows and the sums of their hashes.

    Attributes:
        high, low: the sums of the hashes' first and last 64 bits, modulo 2^64.
    """

    rows: int = 0
    high: int = 0
    low: int = 0

    @property
    def content_hash(self) -> str:
        """The hash of the content, as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


class Digests:
    """The digests of a number of buckets, as arrays: their size does not depend on the rows.

    Attributes:
        rows: how many rows each bucket has, shape (count,).
    """

    def __init__(self, count: int) -> None:
        self.rows: Int64s = np.zeros(count, np.int64)
        self._sums: Uint64s = np.zeros((2, count), np.uint64)

    def add(self, buckets: Int64s, rows: Int64s, high: Uint64s, low: Uint64s) -> None:
        """Add groups of rows: the bucket, number and sums of hashes of each."""
        np.add.at(self.rows, buckets, rows)
        for total, numbers in zip(self._sums, (high, low), strict=True):
            np.add.at(total, buckets, numbers)

    def add_sums(self, groups: Iterable[Sequence[Any]]) -> None:
        """Add (bucket, rows, high, low) of groups of rows, with sums of any size and sign."""
        columns = [*zip(*groups, strict=True)]
        if not columns:
            return
        buckets, rows = (np.array(numbers, np.int64) for numbers in columns[:2])
        high, low = (
            np.array([int(number) % _MODULUS for number in numbers], np.uint64)
            for numbers in columns[2:]
        )
        self.add(buckets, rows, high, low)

    def differs_from(self, other: Digests) -> Mask:
        """A mask of the buckets whose digests are not equal."""
        different: Mask = (self.rows != other.rows) | (self._sums != other._sums).any(axis=0)
        return different

    def total(self) -> Digest:
        """The digest of all buckets."""
        high, low = self._sums.sum(axis=1, dtype=np.uint64)  # modulo 2^64
        return Digest(int(self.rows.sum()), int(high), int(low))
