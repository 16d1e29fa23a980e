"""Loads Spark's Python worker daemon while the JVM still starts.

Spark starts its Python daemon when the first task needs a worker, and then the daemon needs two
seconds for imports. So a run starts a process that imports the same modules while the JVM starts,
and then waits. The daemon that Spark starts passes its pipes, arguments and environment to this
process, and then only waits for its end. Without such a process (after a kill, in another Python,
on other systems than Linux), Spark's daemon works as usual.

Its figure: the first task of a start (ADR 0036).
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from pgsluice.system.processes import Part, start

WORKERS = "pyspark.worker"
"""The argument by which Spark requests workers for tasks."""
AHEAD = "ahead"
"""The second argument of a process that is started ahead of Spark's daemon."""
VARIABLE = "_PGSLUICE_DAEMON"
"""The environment variable of the JVM with the name by which its daemon finds the process."""
_TAKEN = b"+"
_PIPES = (0, 1, 2)


class DaemonAhead:
    """A process that imports the modules of tasks, and waits for Spark's daemon.

    It ends when it is closed, or with this process, unless Spark's daemon has connected.

    Args:
        module: the daemon's module, which calls :func:`wait_for_daemon` after its imports.
        name: the name by which Spark's daemon finds it.
        log: the file for its stderr.
    """

    def __init__(self, module: str, name: str, log: Path) -> None:
        with log.open("ab") as stderr, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address_of(name))
            listener.listen(1)
            self.process = start(
                Part.DAEMON,
                lambda: subprocess.Popen(
                    [sys.executable, "-m", module, WORKERS, AHEAD, str(listener.fileno())],
                    stdin=subprocess.PIPE,  # closed when this process ends, however it ends
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=[listener.fileno()],
                    # Spark's scripts set this for the Python processes that the JVM starts.
                    env={**os.environ, "PYTHONHASHSEED": "0"},
                    process_group=0,  # Ctrl-C in a terminal is for this process
                ),
            )

    def close(self) -> None:
        """End the process, unless Spark's daemon has connected; reap it when it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        # If it has become Spark's daemon, Spark ends it, perhaps much later.
        threading.Thread(target=self.process.wait, daemon=True).start()


def wait_for_daemon(listener: int) -> None:
    """Wait for Spark's daemon, and take over its pipes, arguments and environment.

    The process ends here if its parent ends first.

    Args:
        listener: the descriptor of the socket that :class:`DaemonAhead` created.
    """
    with socket.socket(fileno=listener) as sockets:
        ready, _, _ = select.select([sockets.fileno(), 0], [], [])
        if sockets.fileno() not in ready:
            sys.exit()
        connection, _ = sockets.accept()
    if _user_of(connection) != os.getuid():
        sys.exit()
    _, pipes, _, _ = socket.recv_fds(connection, 1, len(_PIPES))
    with connection.makefile("rb") as lines:
        given = json.loads(lines.readline())
    if given["python"] != sys.executable:
        sys.exit()
    for pipe, number in zip(pipes, _PIPES, strict=True):
        os.dup2(pipe, number)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv[1:], sys.path[:] = given["arguments"], given["path"]
    connection.sendall(_TAKEN)
    # The process that gave all this sees the end of this one by the end of the connection.
    os.register_at_fork(after_in_child=connection.close)


def give_to_process_ahead() -> bool:
    """Pass this process's pipes, arguments and environment to the process that was started ahead.

    Returns:
        True if the other process took over and has ended since; False if there is none.
    """
    name = os.environ.pop(VARIABLE, None)
    if name is None:
        return False
    given = {
        "python": sys.executable,
        "arguments": sys.argv[1:],
        "path": sys.path,
        "environment": dict(os.environ),
    }
    is_taken = False
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address_of(name))
        if _user_of(connection) != os.getuid():  # it has taken the name of one that has ended
            return False
        socket.send_fds(connection, [b"\0"], _PIPES)
        connection.sendall(json.dumps(given).encode() + b"\n")
        is_taken = connection.recv(1) == _TAKEN
        connection.recv(1)
    return is_taken


def address_of(name: str) -> bytes:
    """A socket's abstract address, which disappears with its process."""
    return b"\0pgsluice " + name.encode()


def _user_of(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
