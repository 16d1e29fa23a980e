"""Object stores on this machine for tests: loopback only, each in a process or thread of the test.

* ``ministack`` is S3 in memory, from PyPI, in an environment of its own.
* ``versitygw`` is S3 over a folder, built by Go: it survives its own SIGKILL. For the soak.
* ``azurite`` is Azure's emulator, from npm.
* Google's is our own fake, :mod:`tests.support.gcs_fake`: no emulator honours the conditions of
  the interface that clients use.

What they need is fetched once into ``.cache/``. Where that is not possible,
:class:`StoreUnavailable` says why, and tests are skipped with it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.support.gcs_fake import gcs_fake
from tests.support.waiting import await_that

_ROOT = Path(__file__).parents[2]
_CACHE = _ROOT / ".cache"
_MINISTACK_LOCK = Path(__file__).with_name("ministack.lock")
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_AZURITE = "azurite@3.35.0"
KEY, SECRET = "pgsluice", "test-only"
# Of Azure's emulator: published, the same everywhere.
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class StoreUnavailable(Exception):
    """A server cannot be had on this machine; the reason."""


@dataclass
class ObjectStore:
    """A running store.

    Attributes:
        endpoint: its URL.
        options: the ``storage_options`` of a folder there.
        scheme: of its URLs.
        make_bucket: makes a bucket of a name.
        process: that serves; None: a thread of this one does.
    """

    endpoint: str
    options: dict[str, str]
    scheme: str
    make_bucket: Callable[[str], None]
    process: subprocess.Popen[bytes] | None = None

    def at(self, endpoint: str) -> dict[str, str]:
        """The options of a folder that is reached by another endpoint, such as a proxy's."""
        return {key: value.replace(self.endpoint, endpoint) for key, value in self.options.items()}


@contextmanager
def ministack() -> Iterator[ObjectStore]:
    """S3 in memory.

    Raises:
        StoreUnavailable: it cannot be installed.
    """
    program = _ministack_program()
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "ERROR"}

    def make_bucket(name: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()

    with _served([str(program)], environment, port) as process:
        yield ObjectStore(endpoint, _s3_options(endpoint), "s3", make_bucket, process)


@contextmanager
def versitygw(folder: Path, port: int | None = None) -> Iterator[ObjectStore]:
    """S3 over a folder, which may have the files of a server before it.

    Raises:
        StoreUnavailable: it cannot be built.
    """
    program = _versitygw_program()
    port = port or _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    for part in ("buckets", "parts"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    arguments = [
        *(str(program), "--port", f"127.0.0.1:{port}", "--access", KEY, "--secret", SECRET),
        *("--quiet", "posix", "--sidecar", str(folder / "parts"), str(folder / "buckets")),
    ]

    def make_bucket(name: str) -> None:
        (folder / "buckets" / name).mkdir(exist_ok=True)

    with _served(arguments, {}, port) as process:
        yield ObjectStore(endpoint, _s3_options(endpoint), "s3", make_bucket, process)


@contextmanager
def azurite(folder: Path) -> Iterator[ObjectStore]:
    """Azure's emulator.

    Raises:
        StoreUnavailable: npm cannot bring it.
    """
    program = _azurite_program()
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
    arguments = [
        *(str(program), "--silent", "--blobHost", "127.0.0.1", "--blobPort", str(port)),
        *("--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    options = {
        "azure_storage_account_name": "devstoreaccount1",
        "azure_storage_account_key": _AZURE_KEY,
        "azure_storage_endpoint": endpoint,
        "allow_http": "true",
    }
    with _served(arguments, {}, port) as process:
        yield ObjectStore(
            endpoint, options, "az", lambda name: _make_container(endpoint, name), process
        )


@contextmanager
def google() -> Iterator[ObjectStore]:
    """The fake of Google Cloud Storage."""
    with gcs_fake() as (port, buckets):
        endpoint = f"http://127.0.0.1:{port}"
        empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account = {**empty, "gcs_base_url": endpoint, "disable_oauth": True}
        options = {
            "google_service_account_key": json.dumps(account),
            "allow_http": "true",
        }
        yield ObjectStore(endpoint, options, "gs", buckets.make)


def _s3_options(endpoint: str) -> dict[str, str]:
    return {
        "aws_endpoint_url": endpoint,
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


@contextmanager
def _served(
    arguments: list[str], environment: dict[str, str], port: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that is asked to end after the block, and ends with us whatever happens."""
    dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    process = subprocess.Popen(
        [*dies_with_us, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_that(lambda: _answers(port) or process.poll() is not None, "the store answers")
        if process.poll() is not None:
            raise StoreUnavailable(f"{arguments[0]} ended with {process.returncode}")
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _made_once(folder: Path, program: Path, make: Callable[[Path], None]) -> Path:
    """A program in a folder of the cache, which one process makes for all."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                make(folder)
            except (OSError, subprocess.CalledProcessError) as error:
                output = getattr(error, "stderr", None) or b""
                last = output.decode(errors="replace").strip().rpartition("\n")[2]
                raise StoreUnavailable(f"{folder.name}: {error} {last}") from error
            (folder / "made").touch()
    return program


def _run(arguments: list[str], **environment: str) -> None:
    subprocess.run(
        arguments,
        env={**os.environ, **environment},
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _ministack_program() -> Path:
    digest = hashlib.sha256(_MINISTACK_LOCK.read_bytes()).hexdigest()[:12]
    folder = _CACHE / f"ministack-{digest}"

    def make(folder: Path) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        python = str(folder / "bin" / "python")
        _run([uv, "venv", "-q", "--python", sys.executable, str(folder)])
        install = [uv, "pip", "install", "-q", "--python", python, "--require-hashes"]
        _run([*install, "-r", str(_MINISTACK_LOCK)])

    return _made_once(folder, folder / "bin" / "ministack", make)


def _versitygw_program() -> Path:
    if shutil.which("go") is None:
        raise StoreUnavailable("versitygw is built by Go, which is not here")
    folder = _CACHE / f"versitygw-{_VERSITYGW.rpartition('@')[2]}"

    def make(folder: Path) -> None:
        _run(["go", "install", _VERSITYGW], GOBIN=str(folder), GOFLAGS="-mod=mod")

    return _made_once(folder, folder / "versitygw", make)


def _azurite_program() -> Path:
    if shutil.which("npm") is None:
        raise StoreUnavailable("Azurite comes from npm, which is not here")
    folder = _CACHE / _AZURITE.replace("@", "-")

    def make(folder: Path) -> None:
        folder.mkdir()
        _run(["npm", "install", "--silent", "--no-audit", "--prefix", str(folder), _AZURITE])

    return _made_once(folder, folder / "node_modules" / ".bin" / "azurite-blob", make)


def _make_container(endpoint: str, name: str) -> None:
    """Make a container: the only request that our client has no call for."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    account = endpoint.rpartition("/")[2]
    signed = "\n".join(
        [
            *("PUT", *[""] * 11),
            *(f"x-ms-date:{date}", f"x-ms-version:{version}"),
            *(f"/{account}/{account}/{name}", "restype:container"),
        ]
    )
    digest = hmac.digest(base64.b64decode(_AZURE_KEY), signed.encode(), "sha256")
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {account}:{base64.b64encode(digest).decode()}",
    }
    url = f"{endpoint}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()
