"""Child processes of tests, forked from one process that has imported everything they use.

Each worker of the tests has one fork server; what is preloaded is said here, once for all tests.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.reduction import DupFd
from threading import Lock
from typing import Any

from pgsluice.failpoints import arm

CHILDREN = multiprocessing.get_context("forkserver")
PRELOADED = (
    "hypothesis.strategies",
    "tests.support.forked_capture",
    "tests.support.forked_planner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pgsluice.spark.source.streaming.stream",
)
CHILDREN.set_forkserver_preload([*PRELOADED])


_LOCK = Lock()


class Child:
    """A process that the fork server starts; any thread may ask for its exit code.

    An exit code comes through a pipe, once, and whoever starts a process asks for those of all
    others. Two threads that ask at the same moment would take it from each other: one of them gets
    255. So only one thread starts or asks at a time.

    Args:
        target: what it does.
        args: for ``target``; they are pickled.
    """

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        self._process = CHILDREN.Process(target=target, args=args, daemon=True)
        with _LOCK:
            self._process.start()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """Becomes readable when it has ended."""
        return self._process.sentinel

    def poll(self) -> int | None:
        """Its exit code, the negative number of a signal, or None while it runs."""
        with _LOCK:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code when it has ended; None when that took too long."""
        connection.wait([self.sentinel], timeout)
        return self.poll()

    def terminate(self) -> None:
        """Ask it to end, by SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()


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
