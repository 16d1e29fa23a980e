"""A worker daemon that is loaded before Spark starts its own; the tests are Spark."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import HANGS_S, await_that

from pgsluice.spark.session.daemon_ahead import VARIABLE, DaemonAhead, address_of

NAME = f"a test {os.getpid()}"
MODULE = """
import os, sys
from pgsluice.spark.session import daemon_ahead

if sys.argv[2:3] == [daemon_ahead.AHEAD]:
    daemon_ahead.wait_for_daemon(int(sys.argv[3]))
elif daemon_ahead.give_to_process_ahead():
    sys.exit()
print(os.environ["SAID"], sys.argv[1], "to", os.getpid(), file=sys.stderr)
from pyspark.daemon import manager
manager()
"""


class Daemon:
    """The daemon as Spark starts it."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [python, "-m", "the_daemon", "pyspark.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, VARIABLE: NAME, "SAID": "Spark says"},
            )

    def fork(self) -> str:
        """Have a worker forked; what the daemon that did it wrote to Spark's stderr."""
        assert self.process.stdout is not None
        (port,) = struct.unpack(">i", self.process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            (worker,) = struct.unpack(">i", connection.recv(4))
        assert worker > 0
        return self._stderr.read_text().splitlines()[0]

    def end(self) -> None:
        """Spark ends its daemon."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(HANGS_S)


@pytest.fixture
def ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonAhead]:
    (tmp_path / "the_daemon.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SAID", "the run says")
    made = DaemonAhead("the_daemon", NAME, tmp_path / "log")
    yield made
    made.close()
    made.process.wait(HANGS_S)


def test_the_process_ahead_becomes_the_daemon(tmp_path: Path, ahead: DaemonAhead) -> None:
    daemon = Daemon(tmp_path)
    assert daemon.fork() == f"Spark says pyspark.worker to {ahead.process.pid}"
    ahead.close()  # it is Spark's now
    assert ahead.process.poll() is None
    assert daemon.process.poll() is None
    daemon.end()
    assert daemon.process.returncode == 0
    ahead.process.wait(HANGS_S)


def test_a_process_that_no_daemon_needs_is_reaped(ahead: DaemonAhead) -> None:
    ahead.close()
    await_that(lambda: ahead.process.returncode is not None)  # nothing here asks the system


def test_a_daemon_that_nobody_waits_for_works_itself(tmp_path: Path, ahead: DaemonAhead) -> None:
    ahead.process.kill()
    ahead.process.wait(HANGS_S)
    daemon = Daemon(tmp_path)
    assert daemon.fork() == f"Spark says pyspark.worker to {daemon.process.pid}"
    daemon.end()


def test_a_daemon_of_another_python_works_itself(tmp_path: Path, ahead: DaemonAhead) -> None:
    ours = Path(sys.executable)
    other = ours.with_name(min({"python", "python3"} - {ours.name}))
    daemon = Daemon(tmp_path, str(other))
    assert daemon.fork() == f"Spark says pyspark.worker to {daemon.process.pid}"
    daemon.end()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_daemon_gives_nothing_to_another_user(tmp_path: Path, ahead: DaemonAhead) -> None:
    """The name is seen by all users, and is free once the process ahead has ended."""
    ahead.process.kill()
    ahead.process.wait(HANGS_S)
    with socket.socket(socket.AF_UNIX) as listener:
        os.seteuid(65534)
        try:
            listener.bind(address_of(NAME))
            listener.listen(1)
        finally:
            os.seteuid(0)
        listener.settimeout(HANGS_S)
        daemon = Daemon(tmp_path)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(HANGS_S)
            assert connection.recv(1) == b""
        assert daemon.fork() == f"Spark says pyspark.worker to {daemon.process.pid}"
        daemon.end()


def test_the_process_ahead_ends_with_its_run(ahead: DaemonAhead) -> None:
    assert psutil.Process(ahead.process.pid).is_running()
    ahead.close()
    assert ahead.process.wait(HANGS_S) == 0
