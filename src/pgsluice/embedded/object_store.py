"""An object store that needs no installation: ``ministack`` from PyPI, S3 in memory, on loopback.

It has pinned dependencies of its own, so it gets an environment of its own, which is made once. The
server ends with the process that started it, however that process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

from pgsluice.embedded.account import own_folder
from pgsluice.embedded.watcher import ParentWatcher
from pgsluice.errors import ConfigError

KEY, SECRET = "pgsluice", "test-only"
_LOCK = Path(__file__).with_name("ministack.lock")
_START_S = 60.0
_POLL_S = 0.02


class EmbeddedStore:
    """A running store; to be used in a with block.

    Args:
        cache: a folder for the program; None: one of ours below the system's temporary folders.

    Attributes:
        options: the ``storage_options`` of a folder there.

    Raises:
        ConfigError: the program cannot be installed, or does not start.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        program = _program(cache)
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.options = s3_options(self.endpoint)
        self.process = subprocess.Popen(
            [str(program)],
            cwd=folder,
            env={
                **os.environ,
                "BIND_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(self._port),
                "LOG_LEVEL": "ERROR",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach it before those who write to it
        )
        self._watcher = ParentWatcher('kill -KILL "$0"', str(self.process.pid))
        ends_at = time.monotonic() + _START_S
        while not answers(self._port):
            if self.process.poll() is not None or time.monotonic() > ends_at:
                self.stop()
                raise ConfigError("the object store did not start")
            time.sleep(_POLL_S)

    def __enter__(self) -> EmbeddedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        connection = HTTPConnection("127.0.0.1", self._port)
        connection.request("PUT", f"/{name}")
        connection.getresponse().read()
        connection.close()

    def stop(self) -> None:
        """End the object store; its objects are lost."""
        self._watcher.dismiss()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def s3_options(endpoint: str) -> dict[str, str]:
    """The ``storage_options`` of a store on loopback, whose keys protect nothing."""
    return {
        "aws_endpoint_url": endpoint,
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def made_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Have a folder with a program, which one process makes for all.

    Raises:
        OSError, subprocess.CalledProcessError: of ``make``.
    """
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "made").touch()


def run_quietly(arguments: list[str], **environment: str) -> None:
    """Run a program to its end.

    Raises:
        OSError, subprocess.CalledProcessError: it failed; the second one has its error output.
    """
    subprocess.run(
        arguments,
        env={**os.environ, **environment},
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _program(cache: Path | None) -> Path:
    digest = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    if cache is None:
        cache = own_folder(Path(f"/var/tmp/pgsluice-programs-{os.geteuid()}"))  # noqa: S108 - checked
    folder = cache / f"ministack-{digest}"
    try:
        made_once(folder, _install)
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or b""
        last = output.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last or str(error)
        raise ConfigError(
            f"pip could not install the package ministack, the demo's object store: {reason}",
            hint="give pip access to PyPI, or set pip to an index that has ministack",
        ) from error
    return folder / "bin" / "ministack"


def _install(folder: Path) -> None:
    """Make an environment with the program, by uv where our own environment has it."""
    python, uv = str(folder / "bin" / "python"), Path(sys.executable).with_name("uv")
    if uv.exists():
        run_quietly([str(uv), "venv", "-q", "--python", sys.executable, str(folder)])
        install = [str(uv), "pip", "install", "-q", "--python", python]
    else:
        run_quietly([sys.executable, "-m", "venv", str(folder)])
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run_quietly([*install, "--require-hashes", "-r", str(_LOCK)])
