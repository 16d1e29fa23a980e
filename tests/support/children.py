"""Child processes of tests, forked from one process that has imported everything they use.

Each worker of the tests has one fork server; what is preloaded is said here, once for all tests.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.reduction import DupFd
from typing import Any

from pgsluice.failpoints import arm

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    [
        "hypothesis.strategies",
        "tests.support.forked_capture",
        "tests.support.forked_planner",
        "pyspark.sql.streaming.python_streaming_source_runner",
        "pgsluice.subscription.batch_reader",
    ]
)


class Inherited:
    """An argument of a child: a file descriptor that is the child's as well, there a number."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[object, ...]:
        return _detach, (DupFd(self._descriptor),)


def _detach(duplicate: Any) -> int:
    descriptor: int = duplicate.detach()
    return descriptor


def take_over(environment: dict[str, str], descriptors: list[int]) -> None:
    """Give this child the environment and the three standard streams of another process."""
    for stream, descriptor in zip((sys.stdin, sys.stdout, sys.stderr), descriptors, strict=True):
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    arm(environment.get("PGSLUICE_FAILPOINTS", ""))
