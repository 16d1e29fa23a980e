"""How much of a table is compared, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pgsluice.errors import PgsluiceError
from pgsluice.verification.digest import Mask

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Extent:
    """What a comparison reads.

    Attributes:
        sample: the part of the ranges of keys, above 0.0; which ones, is random.
        rate: how much of the source is read, in bytes per second; None: no limit.
        is_stopping: polled between two reads and in pauses; true: give up.
    """

    sample: float = 1.0
    rate: int | None = None
    is_stopping: Callable[[], bool] = bool

    def chosen(self, count: int) -> Mask | None:
        """Which of ``count`` ranges are compared; None: all."""
        if self.sample >= 1:
            return None
        mask: Mask = np.zeros(count, np.bool_)
        most = max(1, round(count * self.sample))
        mask[np.random.default_rng().choice(count, most, replace=False)] = True
        return mask

    def pause_until(self, end: float) -> None:
        """Wait until a time of the monotonic clock.

        Raises:
            PgsluiceError: the comparison was asked to stop.
        """
        while True:
            if self.is_stopping():
                raise PgsluiceError("asked to stop")
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _POLL_S))


EVERYTHING = Extent()
"""All rows, without a limit."""
