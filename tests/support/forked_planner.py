"""Processes that plan the batches of the tests' queries: forked, like their captures.

For each streaming query, Spark starts a Python process that plans its batches. It needs more than
a second of CPU to import PySpark and pgsluice, and Spark gives it ten seconds to connect, which no
setting changes: too few where several workers of the tests start at the same time. Here Spark
starts a small program instead, which connects to the JVM, has the process forked from
multiprocessing's fork server and stands for it: it passes SIGTERM on, and ends when the process
does. The process itself runs Spark's own module over the program's connection. Tests that start
``pgsluice run`` as a program plan as users do.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from pathlib import Path

from tests.support.children import Child, Inherited, take_over

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
_PYTHON = """#!/bin/sh
case "$2" in
  {module}) exec {python} -IS {program} {socket} ;;
  *) exec {python} "$@" ;;
esac
"""


class ForkedPlanners:
    """Forks planners for the programs that ask for them; a context manager.

    Args:
        folder: for the socket and the program.

    Attributes:
        python: the program that Spark starts instead of Python.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / "socket"))
        self._socket.listen()
        text = _PYTHON.format(
            module=PLANNER,
            python=shlex.quote(sys.executable),
            program=shlex.quote(__file__.replace("forked_planner", "planner_program")),
            socket=shlex.quote(str(folder / "socket")),
        )
        self.python.write_text(text)
        self.python.chmod(0o755)

    def __enter__(self) -> ForkedPlanners:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                program, _ = self._socket.accept()
                threading.Thread(target=_fork, args=(program,), daemon=True).start()


def _fork(program: socket.socket) -> None:
    """Fork a planner for a program, and tell each of them of the other's end."""
    with program:
        _, descriptors, _, _ = socket.recv_fds(program, 1, 4)
        if not descriptors:  # it was ended before it had asked
            return
        with program.makefile("rb", buffering=0) as lines:
            environment = json.loads(lines.readline())
        planner = Child(_plan, environment, [Inherited(one) for one in descriptors])
        for descriptor in descriptors:
            os.close(descriptor)
        while program in connection.wait([program, planner.sentinel]):
            if not program.recv(1):  # it was killed
                planner.kill()
                break
            planner.terminate()
        code = planner.wait()
        with suppress(OSError):
            program.sendall(b"%d\n" % (code or 0))


def _connected(descriptor: int, *_: object) -> tuple[object, socket.socket]:
    """The connection of the planner's program, which has sent the secret already."""
    from pyspark.serializers import UTF8Deserializer

    connection = socket.socket(fileno=descriptor)
    file = connection.makefile("rwb")
    assert UTF8Deserializer().loads(file) == "ok"
    return file, connection


def _plan(environment: dict[str, str], descriptors: list[int]) -> None:
    """The planner, after its fork."""
    from pyspark import worker_util

    *streams, connection = descriptors
    take_over(environment, streams)
    worker_util.local_connect_and_auth = partial(_connected, connection)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [PLANNER]
    del sys.modules[PLANNER]  # the fork server has imported it, and runpy would warn
    runpy.run_module(PLANNER, run_name="__main__", alter_sys=True)
