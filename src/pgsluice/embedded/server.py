"""The embedded server: initdb, start, stop, crash, restart.

Rules:

* The server listens on a free port of 127.0.0.1, which it keeps over restarts, and on a Unix
  socket in its own folder. Authentication is ``trust`` unless ``pg_hba.conf`` is rewritten.
* The server accepts connections when :meth:`EmbeddedServer.start` returns.
* The server ends with the ``with`` block, the interpreter, or the process (see
  :mod:`pgsluice.embedded.watcher`), and a temporary folder is removed with it.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from psycopg.conninfo import make_conninfo

from pgsluice.embedded.account import Account
from pgsluice.embedded.programs import Programs, find_programs
from pgsluice.embedded.watcher import ParentWatcher, watch
from pgsluice.errors import ConfigError

StopMode = Literal["smart", "fast", "immediate"]
_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "40",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "logging_collector": "off",
    "log_checkpoints": "off",
    "timezone": "UTC",
}
# Below the range that Linux uses for outgoing connections, so that none takes our port while
# the server restarts.
_PORTS = range(20000, 32000)
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_SOCKET_PATH_LIMIT = 100


class EmbeddedServer:
    """A PostgreSQL server.

    Args:
        version: major version: 16 and 18 from the wheel, others from npm.
        directory: a folder for the server, which is kept; None: a temporary one, which is not.
        settings: added to :data:`DEFAULT_SETTINGS` in ``postgresql.conf``; change
            :attr:`settings` and restart to apply others.

    Attributes:
        account: the account of the operating system that runs the server.

    Raises:
        ConfigError: there are no programs of that version, or the folder cannot be used.
    """

    def __init__(
        self,
        version: int = 18,
        directory: str | Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.settings: dict[str, str] = {**DEFAULT_SETTINGS, **(settings or {})}
        self.account = Account.choose()
        self.programs: Programs = find_programs(version, self.account)
        self._is_temporary = directory is None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: ParentWatcher | None = None
        self._owner_pid = os.getpid()
        self.directory = self._make_folder(directory)
        self._port_lease = reserve_port()
        atexit.register(self.close)
        if not (self.data_dir / "PG_VERSION").exists():
            self.create_cluster()

    # Properties

    @property
    def data_dir(self) -> Path:
        """The folder of the server's data (PGDATA)."""
        return self.directory / "data"

    @property
    def port(self) -> int:
        """The TCP port, on 127.0.0.1."""
        return self._port_lease.port

    @property
    def log_path(self) -> Path:
        """The server's log, from its first start on."""
        return self.directory / "server.log"

    @property
    def version(self) -> str:
        """The full version, such as ``18.4``."""
        return self.programs.version

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None if it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def dsn(self, dbname: str = "postgres", user: str = "postgres", **parameters: str) -> str:
        """A libpq connection string, over TCP unless ``parameters`` name another host."""
        parameters = {"host": "127.0.0.1", **parameters}
        return make_conninfo(port=self.port, dbname=dbname, user=user, **parameters)

    def program(self, name: str) -> Path:
        """The path of a client program such as ``pgbench``.

        Raises:
            ConfigError: this PostgreSQL does not include it (those from npm have none).
        """
        return self.programs.path(name)

    # Starting and stopping

    def __enter__(self) -> EmbeddedServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and wait until it accepts connections; no-op if it runs.

        Raises:
            ConfigError: the server did not start; the hint has the end of its log.
        """
        if self.is_running:
            return
        deadline = time.monotonic() + _START_TIMEOUT_S
        is_first = self._process is None
        while True:
            self._write_settings()
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            if self._launch(deadline):
                return
            log = self._log_since(log_start)
            if "could not create any TCP/IP sockets" in log and is_first:
                self._port_lease.close()
                self._port_lease = reserve_port()
            elif "pre-existing shared memory" in log and time.monotonic() < deadline:
                time.sleep(0.05)  # backends of a killed postmaster have not ended yet
            else:
                self._process = None if is_first else self._process
                log_tail = "\n".join(log.splitlines()[-10:])
                raise ConfigError(
                    f"PostgreSQL {self.version} with its data in {self.directory} did not start",
                    hint=f"resolve what the end of the server's log says:\n{log_tail}",
                )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait until it has ended; no-op if it does not run.

        Args:
            mode: as in pg_ctl: ``smart`` waits for clients, ``fast`` disconnects them,
                ``immediate`` leaves crash recovery to the next start.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(_SIGNALS[mode])
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._dismiss_watcher()

    def kill(self) -> None:
        """End the postmaster and its backends by SIGKILL, like a crash of the machine."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            # Stopped first, so that it starts no child after we listed them.
            process.send_signal(signal.SIGSTOP)
            backends = _children(process.pid)
            process.kill()
            for pid in backends:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self._dismiss_watcher()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port, with :attr:`settings` as they are now."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server, and remove its folder if it is temporary."""
        if os.getpid() != self._owner_pid:  # a forked child must not stop it
            return
        atexit.unregister(self.close)
        self.stop("immediate" if self._is_temporary else "fast")
        self._port_lease.close()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    # Steps

    def _make_folder(self, directory: str | Path | None) -> Path:
        if directory is None:
            base = self.account.temporary_folder()
            folder = Path(tempfile.mkdtemp(prefix="pgsluice-", dir=base))
            if len(str(folder)) > _SOCKET_PATH_LIMIT - len("/.s.PGSQL.00000"):
                folder.rmdir()
                folder = Path(tempfile.mkdtemp(prefix="pgsluice-", dir="/tmp"))
        else:
            folder = Path(directory).resolve()
            folder.mkdir(parents=True, exist_ok=True)
        self.account.give(folder)
        if not self.account.can_enter(folder):
            raise ConfigError(
                f"the user with id {self.account.uid}, who runs PostgreSQL, cannot enter the "
                f"folder {folder}",
                hint="choose a folder that every user can enter, or give no folder to use a "
                "temporary one",
            )
        return folder

    def create_cluster(self) -> None:
        """Create the data directory; subclasses may copy another one."""
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        self.account.give(self.data_dir)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        self.run_program("initdb", "-D", str(self.data_dir), *options)
        with (self.data_dir / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude = 'embedded.conf'\n")

    def run_program(self, name: str, *arguments: str) -> None:
        """Run a program under the server's account; if it fails, the server is closed.

        Raises:
            ConfigError: the program failed; the hint has the end of its output.
        """
        done = subprocess.run(
            [str(self.program(name)), *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            **self.account.run_as(),
        )
        if done.returncode != 0:
            self.close()
            raise ConfigError(
                f"{name} of PostgreSQL {self.version} failed in {self.directory}",
                hint=(done.stderr or done.stdout).strip()[-800:],
            )

    def _write_settings(self) -> None:
        """Write the file that postgresql.conf includes; ALTER SYSTEM overrides it."""
        settings = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
        }
        lines = [
            "{} = '{}'\n".format(name, value.replace("'", "''")) for name, value in settings.items()
        ]
        path = self.data_dir / "embedded.conf"
        path.write_text("".join(lines))
        self.account.give(path)

    def _launch(self, deadline: float) -> bool:
        """Start the postmaster; False if it ended before it was ready."""
        self._dismiss_watcher()
        self._watcher = watch(self.directory, self.account, is_temporary=self._is_temporary)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program("postgres")), "-D", str(self.data_dir)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
                **self.account.run_as(),
            )
        pid = self._process.pid
        while self._process.poll() is None:
            if self._is_ready(pid):
                return True
            if time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                break
            time.sleep(0.01)
        self._dismiss_watcher()
        return False

    def _is_ready(self, pid: int) -> bool:
        """Whether the postmaster has written "ready" to the eighth line of postmaster.pid."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _log_since(self, offset: int) -> str:
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def _dismiss_watcher(self) -> None:
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None


class PortLease:
    """A TCP port of 127.0.0.1 that no other embedded server takes while its server is stopped.

    A UDP socket at the same number holds it: the system frees that socket when this process ends.

    Raises:
        OSError: the port is in use, or another lease has it.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._held.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            self._held.close()
            raise

    def close(self) -> None:
        """Give the port back."""
        self._held.close()


def reserve_port(ports: Sequence[int] = _PORTS) -> PortLease:
    """A lease of one of ``ports``, chosen at random.

    Raises:
        ConfigError: none of a hundred was free.
    """
    choices = random.Random()  # noqa: S311 - unseeded: parallel tests need different ports
    for _ in range(100):
        with suppress(OSError):
            return PortLease(choices.choice(ports))
    raise ConfigError("no free port was found on 127.0.0.1")


def _children(pid: int) -> list[int]:
    """The ids of a process's children on Linux; empty elsewhere."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in children.split()]
