"""What the demo stands on: a folder, an embedded PostgreSQL, and ``pgsluice run``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import psycopg

from pgsluice.config import Config, load_config, render_config
from pgsluice.demo.shop import Workload
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ConfigError, PgsluiceError

SUBSCRIPTION = "lake"
_DATABASE = "shop"
_STOP_TIMEOUT_S = 90.0
# Two tasks at a time are enough for a demo, and leave something to PostgreSQL and the shop.
_SPARK = '"spark.master" = "local[2]"\n"spark.driver.memory" = "1g"\n'


class Stage:
    """Everything that has to end with the demo.

    Args:
        directory: a new or empty folder that stays; None: a temporary one.
        keep: let the temporary one stay, too.

    Raises:
        ConfigError: the folder is not empty or cannot be made.
    """

    def __init__(self, directory: Path | None, *, keep: bool) -> None:
        self.stays = keep or directory is not None
        self.folder = _make_folder(directory)
        self._ending = ExitStack()
        self._server: EmbeddedServer | None = None
        self._run: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._ending.close()
        finally:
            if not self.stays:
                shutil.rmtree(self.folder, ignore_errors=True)

    # Where things are

    @property
    def config_path(self) -> Path:
        return self.folder / "pgsluice.toml"

    @property
    def log_path(self) -> Path:
        """What ``pgsluice run`` says."""
        return self.folder / "run.log"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def table_path(self, title: str) -> Path:
        """Where a table's target lies."""
        namespace, _, name = title.partition(".")
        return self.lake / namespace / name

    @property
    def dsn(self) -> str:
        assert self._server is not None
        return self._server.dsn(_DATABASE)

    @property
    def server_version(self) -> str:
        assert self._server is not None
        return self._server.version

    # Acts

    def start_server(self) -> Workload:
        """Start PostgreSQL and make the shop's database.

        It has a temporary folder of its own: the account that runs it for root could not
        enter every folder that a user may name.
        """
        self._server = self._ending.enter_context(EmbeddedServer(18))
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}")
        return Workload(self.dsn)

    def write_config(self) -> Config:
        """Write the configuration as ``pgsluice init`` does, and read it."""
        text = render_config(
            dsn=self.dsn,
            slot="pgsluice",
            spool="spool",
            target="lake/{schema}/{table}",
            name=SUBSCRIPTION,
        )
        self.config_path.write_text(text.replace('"spark.master" = "local[*]"\n', _SPARK))
        return load_config(self.config_path)

    def start_run(self) -> None:
        """Start ``pgsluice run`` as a user would."""
        with self.log_path.open("ab") as log:
            self._run = subprocess.Popen(
                [sys.executable, "-m", "pgsluice", "run", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "NO_COLOR": "1"},
                start_new_session=True,  # Ctrl-C is ours to handle: it gets one SIGTERM
            )
        # A SIGKILL of ours runs no code of ours: the shell sees its pipe close and ends the run.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -TERM "$0"', str(self._run.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._ending.callback(self.stop_run)

    def check_run(self) -> None:
        """See that it still runs.

        Raises:
            PgsluiceError: it has ended; the hint has the end of what it said.
        """
        assert self._run is not None
        code = self._run.poll()
        if code is not None:
            said = self.log_path.read_text(errors="replace").strip().splitlines()
            raise PgsluiceError(
                f"`pgsluice run` ended with exit code {code}",
                hint="it said:\n" + "\n".join(said[-15:]),
            )

    def stop_run(self) -> int | None:
        """End it by SIGTERM; by force if it does not end.

        Returns:
            its exit code: 143 after a clean end; None when it was not started.
        """
        run, watcher = self._run, self._watcher
        if run is None:
            return None
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            assert watcher.stdin is not None
            watcher.stdin.close()
            self._watcher = None
        if run.poll() is None:
            run.terminate()
            try:
                run.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # What it has started itself is in its session, and in no other's.
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        return run.returncode


def _make_folder(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="pgsluice-demo-"))
    folder = directory.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_used = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{directory} cannot be used: {error.strerror}") from error
    if is_used:
        raise ConfigError(f"{directory} is not empty", hint="name a new folder")
    return folder
