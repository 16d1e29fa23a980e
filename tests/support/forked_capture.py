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

from tests.support.children import Child, Inherited, take_over

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
        descriptors = [Inherited(stdin), Inherited(stdout), Inherited(2)]
        self._child = Child(_run, arguments, dict(os.environ), descriptors)
        os.close(stdin)
        os.close(stdout)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def poll(self) -> int | None:
        """Its exit code, the negative number of a signal, or None while it runs."""
        return self._child.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        code = self._child.wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("capture", timeout or 0.0)
        return code

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._child.kill()


def _run(arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> None:
    """The child, after its fork."""
    os.setsid()
    take_over(environment, descriptors)
    sys.argv = ["pgsluice.capture", *arguments]
    sys.exit(main())
