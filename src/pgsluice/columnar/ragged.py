"""Arrays of byte strings of different lengths, for the VARIANT encoder.

A :class:`Ragged` is n byte strings in one buffer, like Arrow's binary columns. One numpy
operation copies many of them.
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

    def write(self, target: Bytes, target_starts: Int64s, rows: Int64s | None = None) -> None:
        """Copy strings (all, or those of ``rows``) to ``target``, from ``target_starts`` on."""
        starts = self.starts if rows is None else self.starts[rows]
        lengths = self.lengths if rows is None else self.lengths[rows]
        source = spread(starts, lengths)
        target[spread(target_starts, lengths)] = self.data[source]


def spread(starts: Int64s, lengths: Int64s) -> Int64s:
    """The indices of all ranges ``starts[i] .. starts[i] + lengths[i]``, concatenated."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # Each range's start less the length of the ranges before it.
    shift = starts - (ends - lengths)
    indices: Int64s = np.arange(total, dtype=np.int64) + np.repeat(shift, lengths)
    return indices


def little_endian(values: Int64s, width: int) -> Bytes:
    """Unsigned integers as ``width`` bytes each: shape (n, width)."""
    all_bytes = np.ascontiguousarray(values, dtype="<u8").view(np.uint8).reshape(-1, 8)
    return all_bytes[:, :width]
