"""Capture beside a run: a process of its own, watched and started again.

It ends when this process does, however that ends: its standard input is a pipe that we hold,
and the kernel closes it. Its messages go to our standard error as they come.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import TracebackType

from pgsluice.config import Config
from pgsluice.errors import PgsluiceError

STOP_TIMEOUT_S = 30
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
_LIVED_LONG_S = 60.0


class CaptureEnded(PgsluiceError):
    """Capture ended by its own decision, and has said why; fact: ``code``."""


class CaptureProcess:
    """Capture of one configuration, while it is entered.

    A capture that was killed is started again. One that ended with an exit code has said what
    is wrong, and trying again would say the same: :meth:`check` raises with that code.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._deaths = 0
        self._start_at = 0.0

    def __enter__(self) -> CaptureProcess:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the end of its standard input is the request to end
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None else None

    def check(self) -> None:
        """Start it again if it was killed.

        Raises:
            CaptureEnded: it gave up; ``exit_code`` is its own.
        """
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self._start()
            return
        code = self._process.poll()
        if code is None:
            return
        if code >= 0:
            ended = CaptureEnded("capture ended; its message is above", code=code)
            ended.exit_code = code or 1
            raise ended
        if time.monotonic() - self._started > _LIVED_LONG_S:
            self._deaths = 0
        self._start_at = time.monotonic() + _PAUSES_S[min(self._deaths, len(_PAUSES_S) - 1)]
        self._deaths += 1
        self._process = None

    def _start(self) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pgsluice.capture"],
            stdin=subprocess.PIPE,
            # Ctrl-C is for the run, which ends its capture in order.
            start_new_session=True,
        )
        # The configuration goes over the pipe: a password in it shows in no process list.
        assert self._process.stdin is not None
        self._process.stdin.write(self._config.model_dump_json(by_alias=True).encode() + b"\n")
        self._process.stdin.flush()
