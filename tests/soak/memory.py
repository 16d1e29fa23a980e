"""Whether a process grows: what it uses at moments of rest, as long as it lives."""

from __future__ import annotations

import time
from statistics import linear_regression, median

GROWTH = 1.1
"""At most, in the second half of a process' longest life: the median memory of the later barriers
to that of the earlier ones. In the first half, a process still loads and fills its caches."""
_COMPARED = 6
"""Barriers, at least: fewer are chance."""


class Memory:
    """What a process has used at the barriers of its longest life."""

    def __init__(self) -> None:
        self._lives: list[tuple[list[int], list[tuple[float, float]]]] = []

    def add(self, pids: list[int], mib: float) -> None:
        if not self._lives or self._lives[-1][0] != pids:
            self._lives.append((pids, []))
        self._lives[-1][1].append((time.monotonic() / 60, mib))

    @property
    def longest(self) -> list[tuple[float, float]]:
        """Minutes and MiB."""
        return max((life for _, life in self._lives), key=len)

    def assert_steady(self) -> None:
        """In the second half of its longest life it has not grown."""
        second = [mib for _, mib in self.longest[len(self.longest) // 2 :]]
        if len(second) >= _COMPARED:
            middle = len(second) // 2
            assert median(second[middle:]) <= GROWTH * median(second[:middle]), self.longest

    def __str__(self) -> str:
        second = self.longest[len(self.longest) // 2 :]
        slope = linear_regression(*zip(*second, strict=True)).slope if len(second) > 1 else 0.0
        minutes = self.longest[-1][0] - self.longest[0][0]
        return (
            f"{self.longest[0][1]:.0f} to {self.longest[-1][1]:.0f} MiB in {minutes:.0f} minutes,"
            f" {slope:+.1f} MiB a minute in the second half"
        )
