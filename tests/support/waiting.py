"""Waiting for what comes about by itself, with one limit for all tests.

The limit is for what hangs. Nothing that a test expects may take a time: a machine can be slow or
busy. A test that is about a time has a clock of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

HANGS_S = 300.0
SOAK_HANGS_S = 900.0
"""The limit of soaks. On a machine that others used, a start of a run alone took three minutes."""
_POLL_S = 0.02


def await_that(condition: Callable[[], bool], why: str = "it came about") -> None:
    """Wait for a condition, which is asked again and again."""
    pause = threading.Event()
    for _ in range(int(HANGS_S / _POLL_S)):
        if condition():
            return
        pause.wait(_POLL_S)
    pytest.fail(f"never: {why}")
