"""Byte strings of different lengths, many at once: the arithmetic below the VARIANT encoder.

A :class:`Ragged` is n byte strings over one buffer, as Arrow keeps binary columns. The
functions write many of them to many places with one numpy operation, never one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Ragged:
    """n byte strings: string i is ``data[starts[i] : starts[i] + lengths[i]]``."""

    data: Bytes
    starts: Int64s
    lengths: Int64s

    def __len__(self) -> int:
        return len(self.lengths)

    def write(self, target: Bytes, places: Int64s, rows: Int64s | None = None) -> None:
        """Copy strings (all, or those of ``rows``) to ``places`` in ``target``."""
        starts = self.starts if rows is None else self.starts[rows]
        lengths = self.lengths if rows is None else self.lengths[rows]
        source = spread(starts, lengths)
        target[spread(places, lengths)] = self.data[source]


def spread(starts: Int64s, lengths: Int64s) -> Int64s:
    """All indices of the ranges ``starts[i] .. starts[i] + lengths[i]``, one range after the
    other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # Where a range begins in the result, its start less what came before it.
    shift = starts - (ends - lengths)
    indices: Int64s = np.arange(total, dtype=np.int64) + np.repeat(shift, lengths)
    return indices


def exclusive_sum(lengths: Int64s) -> Int64s:
    """n + 1 offsets of n lengths, from 0."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def little_endian(values: Int64s, width: int) -> Bytes:
    """Unsigned integers as ``width`` bytes each: shape (n, width)."""
    eight = np.ascontiguousarray(values, dtype="<u8").view(np.uint8).reshape(-1, 8)
    return eight[:, :width]


def width_of(largest: int) -> int:
    """How many bytes (1 to 4) hold an unsigned number."""
    return max(1, (largest.bit_length() + 7) // 8)
