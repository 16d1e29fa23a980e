"""time as the text that the server prints; the binary form counts microseconds since midnight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from pgsluice.types.buffers import large_binary, offsets_of
from pgsluice.types.codec import Decoded, Spans
from pgsluice.types.text import ComputedTextType

_DAY_US: Final = 86_400_000_000
_SHAPE: Final = np.frombuffer(b"00:00:00.000000", np.uint8)
_POINT: Final = 8
_PLACES: Final = {
    # index of the digit: microseconds in its unit, units until the digit starts again
    0: (36_000_000_000, 10),
    1: (3_600_000_000, 10),
    3: (600_000_000, 6),
    4: (60_000_000, 10),
    6: (10_000_000, 6),
    7: (1_000_000, 10),
    **{9 + place: (10 ** (5 - place), 10) for place in range(6)},
}


@dataclass(frozen=True, slots=True)
class TimeType(ComputedTextType):
    """time without time zone, as ``HH:MM:SS[.ffffff]`` without trailing zeros; 24:00:00 is one."""

    def decode_binary(self, values: pa.Array) -> Decoded:
        return self.decode_spans(Spans.of(values))

    def decode_spans(self, values: Spans) -> Decoded:
        micros = values.of_width(self.binary_width, self.name).view(">i8")[:, 0].astype(np.int64)
        values.refuse((micros < 0) | (micros > _DAY_US), self.name)
        micros = np.clip(micros, 0, _DAY_US)  # the bytes of a null are arbitrary
        letters = np.tile(_SHAPE, (len(micros), 1))
        for place, (unit_us, wrap) in _PLACES.items():
            digits = micros // unit_us
            # Hours do not start again; their first digit is below 3.
            letters[:, place] += (digits % wrap).astype(np.uint8)
        significant = letters[:, _POINT + 1 :] != ord("0")
        until_last = np.logical_or.accumulate(significant[:, ::-1], axis=1)[:, ::-1]
        keep = np.ones(letters.shape, np.bool_)
        keep[:, _POINT] = until_last[:, 0]
        keep[:, _POINT + 1 :] = until_last
        offsets = offsets_of(keep.sum(axis=1))
        return self.decode_text(large_binary(letters[keep], offsets, values.null))

    binary_width: ClassVar[int] = 8
