"""Capture as a child process: how its parent starts, watches and ends it.

The child gets the configuration as one line of JSON on its standard input, so that the dsn is not
on the command line. It ends cleanly when that pipe closes, also when its parent was killed. It
prints the error that ended it to its standard output, as a line of JSON; other output goes to its
standard error. The parent restarts a child that was killed, but not a child that ended with an
error.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from pgsluice.capture.health import CaptureHealth, error_facts, error_of, read_health
from pgsluice.capture.process import run_capture
from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.hints import name_config, with_config
from pgsluice.log_lines import log_to_stderr
from pgsluice.system.ending import limit_the_end
from pgsluice.system.processes import Part, has_ended, say_it_ended, start, why_not_started
from pgsluice.system.threads import Backoff

logger = logging.getLogger(__name__)

END_S = 4.0
"""How long capture may take to end after a request, in seconds."""
_KILL_S = END_S + 1.0
_RESTART_S = (0.0, 0.2, 1.0, 5.0)
_COLLECT_AFTER = 100_000
"""New objects between two runs of the garbage collector: many more than the frames of a chunk."""


class CaptureProcess:
    """A capture that runs as a child process; a context manager. Thread-safe.

    Args:
        once: capture ends by itself at the server's position at its start.
    """

    def __init__(self, config: Config, *, once: bool = False) -> None:
        self._config = config
        self._once = once
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(_RESTART_S)
        self._restart_at = 0.0
        self._started_at = 0.0
        self._lock = threading.RLock()
        self._is_closed = False
        self._error: PgsluiceError | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        process = self._process  # another thread may end it meanwhile
        return process.pid if process is not None else None

    def __enter__(self) -> CaptureProcess:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """Start the child; PgsluiceError: the system cannot start a process now."""
        self._started_at = time.monotonic()
        try:
            self._process = start_child(["--once"] if self._once else [])
        except OSError as error:
            what, hint = why_not_started(Part.CAPTURE, error)
            raise PgsluiceError(what, hint=hint) from error
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended at once: check() says why
            self._process.stdin.write(self._config.model_dump_json(by_alias=True).encode() + b"\n")
            self._process.stdin.flush()

    def health(self) -> CaptureHealth | None:
        """The last state that capture reported."""
        return read_health(self._config.spool.folder)

    def check(self) -> bool:
        """Check whether the child works; restart it, with a log line, if it was killed.

        Returns:
            True while it works or will be restarted; False after the clean end of ``once``, or
                after :meth:`close`.

        Raises:
            PgsluiceError: the error that ended it.
        """
        with self._lock:
            if self._is_closed:  # a new process would have nobody to end it
                return False
            if self._process is None:
                if time.monotonic() >= self._restart_at:
                    try:
                        self._start()
                    except PgsluiceError as error:  # all that it received is durable
                        logger.warning("%s", error)
                        self._restart_later()
                return True
            code = self._process.poll()
            if code is None:
                return True
            if code == 0:
                return False
            if code > 0:
                self._error = self._error or self._ended_by(code)
                raise self._error
            say_it_ended(Part.CAPTURE, self._process.pid, code)
            if time.monotonic() - self._started_at > 60:
                self._backoff.succeeded()
            self._discard()
            self._restart_later()
            return True

    def _restart_later(self) -> None:
        self._restart_at = time.monotonic() + self._backoff.failed()

    def start_again(self) -> None:
        """Receive once more, up to the server's current position, after ``once`` has ended."""
        with self._lock:
            if self._is_closed:
                return
            self._discard()
            self._start()

    def _ended_by(self, code: int) -> PgsluiceError:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in reversed(self._process.stdout.read().splitlines()):
            with suppress(ValueError):
                facts = json.loads(line)
                if isinstance(facts, dict) and "kind" in facts:
                    return error_of(facts)
        return PgsluiceError(
            has_ended(Part.CAPTURE, self._process.pid, code),
            hint="start pgsluice again; no data is lost. The reason is in the log of this run "
            "(stderr), in the last lines before this one",
        )

    def close(self) -> None:
        """End the child cleanly, or by force if that takes too long."""
        with self._lock:
            self._is_closed = True
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._discard()

    def _discard(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process = None


def start_child(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start the child, with pipes to its standard input and from its standard output."""
    return start(
        Part.CAPTURE,
        lambda: subprocess.Popen(
            [sys.executable, "-m", "pgsluice.capture", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A Ctrl-C in the terminal is for the parent, which ends us by the pipe.
            start_new_session=True,
        ),
    )


def main() -> int:
    """Run the child; returns its exit code."""
    log_to_stderr(with_config)
    stop = threading.Event()
    signals: list[int] = []
    # Nothing but the error may come to the parent, which reads the pipe only at the end.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def end(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    limit_the_end(END_S, lambda _: _end_now())
    config = Config.model_validate_json(_read_line(sys.stdin.fileno()))
    if config.path is not None:
        name_config(str(config.path))
    threading.Thread(target=_end_with_parent, args=(sys.stdin.fileno(), stop), daemon=True).start()
    # Each frame is an object that the collector counts, and none is part of a cycle. With
    # Python's own threshold the collector walks all modules' objects over and over: a third of
    # capture's CPU.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    gc.enable()
    try:
        run_capture(config, once="--once" in sys.argv[1:], stop=stop)
    except PgsluiceError as error:
        os.write(answer, b"\n" + json.dumps(error_facts(error)).encode() + b"\n")
        return error.exit_code
    if signals:  # the parent did not ask for this end, and sees by the signal that it did not
        signal.signal(signals[0], signal.SIG_DFL)
        os.kill(os.getpid(), signals[0])
    return 0


def _read_line(descriptor: int) -> bytes:
    """Read a line without a buffered reader, whose lock the thread that waits for the end would
    hold."""
    line = bytearray()
    while not line.endswith(b"\n") and (more := os.read(descriptor, 65536)):
        line += more
    return bytes(line)


def _end_with_parent(descriptor: int, stop: threading.Event) -> None:
    with suppress(OSError):
        while os.read(descriptor, 1):
            pass
    stop.set()
    time.sleep(END_S)
    _end_now()


def _end_now() -> None:
    """Exit as after SIGKILL: a parent that did not ask for it restarts capture."""
    os.kill(os.getpid(), signal.SIGKILL)
