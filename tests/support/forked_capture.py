"""Captures of the pipelines' tests: forked from a process that has imported everything.

The child of a run needs about a second of CPU to import what it uses, and the tests start more than
a hundred. Here it is forked from multiprocessing's fork server. From then on nothing differs: the
same ``main`` runs in a process and a session of its own, with pipes to its parent.
``tests/capture/test_child.py`` and every test that starts ``pgsluice run`` as a program start the
child as users do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import connection
from threading import Lock

from tests.support.children import CHILDREN, Inherited, take_over

from pgsluice.capture.child import main


class ForkedCapture:
    """What :class:`pgsluice.capture.CaptureProcess` uses of a :class:`subprocess.Popen`.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: list[str]) -> None:
        stdin, write_end = os.pipe()
        read_end, stdout = os.pipe()
        self.stdin = os.fdopen(write_end, "wb")
        self.stdout = os.fdopen(read_end, "rb")
        self._lock = Lock()
        descriptors = [Inherited(stdin), Inherited(stdout), Inherited(2)]
        self._process = CHILDREN.Process(
            target=_run, args=(arguments, dict(os.environ), descriptors), daemon=True
        )
        self._process.start()
        os.close(stdin)
        os.close(stdout)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, the negative number of a signal, or None while it runs."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("capture", timeout or 0.0)
        return code

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()


def _run(arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> None:
    """The child, after its fork."""
    os.setsid()
    take_over(environment, descriptors)
    sys.argv = ["pgsluice.capture", *arguments]
    sys.exit(main())
