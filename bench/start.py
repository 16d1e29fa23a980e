"""From ``pgsluice run`` to the first copied table and to the first change in a target."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.live import running
from bench.positions import commits_of
from bench.report import Line
from bench.stage import Stage, wait_for

TABLES = 8
ROWS = 1000


def measure(stage: Stage) -> list[Line]:
    """The first start, with a small table and then with a change in each of them."""
