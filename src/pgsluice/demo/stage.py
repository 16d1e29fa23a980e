"""The demo's folder, its embedded PostgreSQL and object store, and its ``pgsluice run``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg

from pgsluice.config import Config, load_config, render_config
from pgsluice.demo.shop import Workload
from pgsluice.embedded import EmbeddedServer
from pgsluice.embedded.object_store import EmbeddedStore
from pgsluice.embedded.watcher import ParentWatcher
from pgsluice.errors import ConfigError, PgsluiceError
from pgsluice.verification import DeltaRows

SUBSCRIPTION = "lake"
_DATABASE = "shop"
_BUCKET = "lake"
_STOP_TIMEOUT_S = 90.0
# Two tasks at a time leave some CPU to PostgreSQL and the workload.
_SPARK = '"spark.master" = "local[2]"\n"spark.driver.memory" = "1g"\n'


class Stage:
    """The folder, server and run of the demo, which all end with it.

    Args:
        directory: a new or empty folder, which is kept; None for a temporary one.
        has_store: the tables are in an object store, which ends with the demo.

    Raises:
        ConfigError: the folder is not empty, or cannot be created.
    """

    def __init__(self, directory: Path | None, *, keep: bool, has_store: bool = False) -> None:
        self.has_store = has_store
        self.stays = keep or directory is not None
        self.folder = _make_folder(directory)
        self._ending = ExitStack()
        self._server: EmbeddedServer | None = None
        self._store: EmbeddedStore | None = None
        self._run: subprocess.Popen[bytes] | None = None
        self._watcher: ParentWatcher | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ending.close()
        finally:
            if not self.stays:
                shutil.rmtree(self.folder, ignore_errors=True)

    # Paths

    @property
    def config_path(self) -> Path:
        return self.folder / "pgsluice.toml"

    @property
    def log_path(self) -> Path:
        """The output of ``pgsluice run``."""
        return self.folder / "run.log"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def table_path(self, title: str) -> Path:
        """The path of a table's target on the disk."""
        namespace, _, name = title.partition(".")
        return self.lake / namespace / name

    def rows(self, title: str) -> DeltaRows:
        """The rows of a table's target."""
        if self._store is None:
            return DeltaRows(self.table_path(title))
        options = load_config(self.config_path).subscription(SUBSCRIPTION).sink.reading_options()
        return DeltaRows(f"s3://{_BUCKET}/{title.replace('.', '/')}", options=options)

    @property
    def dsn(self) -> str:
        assert self._server is not None
        return self._server.dsn(_DATABASE)

    @property
    def server_version(self) -> str:
        assert self._server is not None
        return self._server.version

    # Steps

    def start_store(self) -> None:
        """Start the object store, which is installed at its first use.

        Raises:
            ConfigError: it cannot be installed.
        """
        self._store = self._ending.enter_context(EmbeddedStore(self.folder))
        self._store.make_bucket(_BUCKET)

    def start_server(self) -> Workload:
        """Start PostgreSQL and create the shop's database.

        The server has a temporary folder of its own, because the account that runs it for root
        may not enter every folder.
        """
        self._server = self._ending.enter_context(EmbeddedServer(18))
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}")
        return Workload(self.dsn)

    def write_config(self) -> Config:
        """Write a configuration as ``pgsluice init`` does, and read it."""
        place = "lake" if self._store is None else f"s3://{_BUCKET}"
        target = f"{place}/{{schema}}/{{table}}"
        text = render_config(
            dsn=self.dsn, slot="pgsluice", spool="spool", target=target, name=SUBSCRIPTION
        )
        if self._store is not None:
            options = ", ".join(f'{key} = "{text}"' for key, text in self._store.options.items())
            path = f'path = "{target}"'
            text = text.replace(
                f"{path} }}", f"{path}, storage_options = {{ {options} }} }}\napply_interval_s = 1"
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
                start_new_session=True,  # Ctrl-C must not reach it: it gets one SIGTERM
            )
        # After a SIGKILL we run no code. The shell sees its pipe close and ends the run.
        self._watcher = ParentWatcher('kill -TERM "$0"', str(self._run.pid))
        self._ending.callback(self.stop_run)

    def check_run(self) -> None:
        """Check that ``pgsluice run`` is active.

        Raises:
            PgsluiceError: it has ended; the hint has the end of its log.
        """
        assert self._run is not None
        code = self._run.poll()
        if code is not None:
            raise PgsluiceError(
                f"`pgsluice run` ended with exit code {code}",
                hint=f"resolve what the end of the log of `pgsluice run` says:\n{self.log_tail()}",
            )

    def log_tail(self) -> str:
        """The last lines of the log."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-15:])

    def stop_run(self) -> int | None:
        """End ``pgsluice run`` by SIGTERM, or by SIGKILL if it does not end.

        Returns:
            its exit code, 143 after a clean end; None if it was not started.
        """
        run, watcher = self._run, self._watcher
        if run is None:
            return None
        if watcher is not None:
            watcher.dismiss()
            self._watcher = None
        if run.poll() is None:
            run.terminate()
            try:
                run.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # Processes that it started are in its session.
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
        raise ConfigError(
            f"the demo cannot use the folder {directory}: {error.strerror}"
        ) from error
    if is_used:
        raise ConfigError(f"the folder {directory} is not empty", hint="choose a new folder")
    return folder
