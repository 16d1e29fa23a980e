"""Starts the JVM of a session in the background, with its stderr in a file.

PySpark would start it only after its own import, and let it write to this process's stderr.
Instead, pgsluice runs Spark's own script, and PySpark connects to the JVM as under spark-submit.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pgsluice.spool.storage import make_folder
from pgsluice.system.processes import Part, is_running, start

if TYPE_CHECKING:
    from pyspark import SparkContext

_LARGEST_LOG_BYTES = 4 << 20
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_PLACE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The environment variable with the file in which the JVM writes its port."""
_POLL_S = 0.01
_SIGNAL_OF_SHELL = 128
"""A shell adds this to the number of the signal that ended its child."""
_NOT_RUN = (126, 127)
"""A shell's exit codes if it cannot run a program, or does not find it."""


class Launch:
    """A JVM during its start, with its stderr in a file.

    Args:
        settings: all settings of the session.
        log: the file for its stderr.
        environment: variables for the JVM, in addition to those of this process.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        log: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if log.exists() and log.stat().st_size > _LARGEST_LOG_BYTES:
            log.replace(f"{log}.1")
        make_folder(log.parent)
        log.touch(mode=0o600)
        self._settings = settings
        with ExitStack() as stack:
            folder = stack.enter_context(_folder_of_launch(log))
            stderr = stack.enter_context(log.open("ab"))
            self._connection = folder / "connection"
            guard = stack.enter_context(_guard())
            place = {"SPARK_CONNECT_MODE": "0", _PLACE: str(self._connection)}
            self._process = start(
                Part.JVM,
                lambda: subprocess.Popen(
                    guard.command(_command(settings)),
                    stdin=subprocess.PIPE,  # the JVM ends when it is closed
                    stderr=stderr,
                    env={**os.environ, **environment, **place},
                    pass_fds=[guard.end],
                    # Ctrl-C in a terminal is for this process, which ends the JVM; and all can be
                    # killed.
                    start_new_session=True,
                ),
            )
            self._guard = guard
            self._folder = stack.pop_all()

    def end(self) -> None:
        """End the JVM before anything has connected to it.

        It would end by itself after its start, unless the folder of this launch, where it writes
        its port, is already gone.
        """
        _kill_all(self._process)

    def context(self) -> SparkContext:
        """Wait for the JVM's start, connect to it, and create its Spark context.

        Raises:
            LaunchEndedError: the JVM, or Spark's script that starts it, ended; or it is ended here,
                because the folder in which it writes its port was deleted.
        """
        from pyspark import SparkConf, SparkContext

        with self._folder:
            try:
                while not self._connection.exists():
                    if self._process.poll() is not None:
                        raise LaunchEndedError(self._process.returncode)
                    if not self._connection.parent.exists():  # with all of the state folder
                        raise LaunchEndedError(-signal.SIGKILL)
                    time.sleep(_POLL_S)
                gateway = _connected(*port_and_secret(self._connection.read_bytes()))
                self._guard.dismiss()
            except BaseException:
                _kill_all(self._process)
                raise
        gateway.proc = self._process
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)
        conf = SparkConf().setAll(list(self._settings.items()))
        context: Any = SparkContext(conf=conf, gateway=gateway)
        # It would print a traceback when the JVM ends: the error says it.
        context._accumulatorServer.handle_error = lambda *_: None
        return context  # type: ignore[no-any-return]


def has_jvm() -> bool:
    """Whether this process already has a JVM, or has to use one that another program started."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return _PORT in os.environ or getattr(context, "_gateway", None) is not None


def _command(settings: Mapping[str, str]) -> list[str]:
    """Spark's script that starts the JVM, with its arguments."""
    home = os.environ.get("SPARK_HOME")
    spec = None if home else find_spec("pyspark")  # its own Spark; PySpark is not imported yet
    if spec is not None and spec.origin is not None:
        home = str(Path(spec.origin).parent)
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    return [f"{home}/bin/spark-submit", *options, *shlex.split(arguments)]


class LaunchEndedError(Exception):
    """The JVM, or Spark's script that starts it, ended before it could be reached.

    Attributes:
        exit_code: negative for the signal that ended it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the JVM ended with exit code {exit_code}")
        self.exit_code = exit_code

    @property
    def has_started(self) -> bool:
        """Whether Spark's script could be run at all."""
        return self.exit_code not in _NOT_RUN

    @property
    def is_kill(self) -> bool:
        """Whether a signal ended it, or a child of Spark's script."""
        return self.exit_code < 0 or self.exit_code > _SIGNAL_OF_SHELL


@dataclass(frozen=True, slots=True)
class _Guard:
    """Ends the processes of a launch if this process is killed meanwhile.

    A running JVM ends when its stdin is closed. A starting one would not notice that, would not
    find the folder for its port, and would stay for ever. So a shell beside it waits for the end of
    a pipe that only this process has open for writing.

    Attributes:
        end: the read end of the pipe, which the shell inherits.
        ours: the write end of the pipe.
    """

    end: int
    ours: int

    def command(self, command: Sequence[str]) -> list[str]:
        """The command together with the guard, in the same process group."""
        # Started by a subshell that ends, so that the JVM is not the parent of a dead process.
        guard = f"( (read -r _ <&{self.end} || kill -KILL 0) </dev/null >/dev/null 2>&1 & )"
        return ["bash", "-c", f'{guard}; exec {self.end}<&- "$@"', "bash", *command]

    def dismiss(self) -> None:
        """Let the guard end without ending the JVM."""
        with suppress(BrokenPipeError):
            os.write(self.ours, b"\n")


@contextmanager
def _guard() -> Iterator[_Guard]:
    end, ours = os.pipe()
    try:
        yield _Guard(end, ours)
    finally:
        os.close(end)
        os.close(ours)


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill Spark's scripts and their children.

    Otherwise a surviving JVM would not find the folder, and would write an error into the log.
    """
    with process, suppress(ProcessLookupError):  # waits for its end, and closes its pipe
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _folder_of_launch(log: Path) -> Iterator[Path]:
    """A folder beside the log during the JVM's start; deletes those of killed processes."""
    for folder in log.parent.glob(f"{log.name}.*"):
        pid = folder.name.removeprefix(f"{log.name}.")
        if folder.is_dir() and not (pid.isdecimal() and is_running(int(pid))):
            shutil.rmtree(folder, ignore_errors=True)
    folder = log.with_name(f"{log.name}.{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def port_and_secret(said: bytes) -> tuple[int, str]:
    """The port and the secret that the JVM writes for PySpark: a port, and a text after its length,
    big-endian."""
    port, length = struct.unpack_from(">ii", said)
    return port, said[8 : 8 + length].decode()


def _connected(port: int, secret: str) -> Any:
    """PySpark's gateway to a running JVM."""
    from pyspark.java_gateway import launch_gateway

    os.environ.update({_PORT: str(port), _SECRET: secret})
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[_PORT], os.environ[_SECRET]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether to log a record: not py4j's traceback about a JVM that has ended, because an error
    reports it.

    py4j logs these with the root logger.
    """
    return record.module != "java_gateway"
