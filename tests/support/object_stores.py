"""Object stores on this machine for tests: loopback only, each in a process or thread of the test.

* ``ministack`` is S3 in memory, from PyPI (:mod:`pgsluice.embedded.object_store`).
* ``versitygw`` is S3 over a folder, built by Go: it survives its own SIGKILL. For the soak.
* ``azurite`` is Azure's emulator, from npm.
* Google's is our own fake, :mod:`tests.support.gcs_fake`: no emulator honours the conditions of
  the interface that clients use.

What they need is fetched once into ``.cache/``. Where that is not possible,
:class:`StoreUnavailable` says why, and tests are skipped with it.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.support.gcs_fake import gcs_fake
from tests.support.waiting import await_that

from pgsluice.embedded.object_store import (
    KEY,
    SECRET,
    EmbeddedStore,
    answers,
    free_port,
    made_once,
    run_quietly,
    s3_options,
)
from pgsluice.errors import ConfigError

_ROOT = Path(__file__).parents[2]
_CACHE = _ROOT / ".cache"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_AZURITE = "azurite@3.35.0"
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
    try:
        store = EmbeddedStore(_ROOT, _CACHE)
    except ConfigError as error:
        raise StoreUnavailable(str(error)) from error
    with store:
        yield ObjectStore(store.endpoint, store.options, "s3", store.make_bucket, store.process)


@contextmanager
def versitygw(folder: Path, port: int | None = None) -> Iterator[ObjectStore]:
    """S3 over a folder, which may have the files of a server before it.

    Raises:
        StoreUnavailable: it cannot be built.
    """
    program = _versitygw_program()
    port = port or free_port()
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
        yield ObjectStore(endpoint, s3_options(endpoint), "s3", make_bucket, process)


@contextmanager
def azurite(folder: Path) -> Iterator[ObjectStore]:
    """Azure's emulator.

    Raises:
        StoreUnavailable: npm cannot bring it.
    """
    program = _azurite_program()
    port = free_port()
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
        await_that(lambda: answers(port) or process.poll() is not None, "the store answers")
        if process.poll() is not None:
            raise StoreUnavailable(f"{arguments[0]} ended with {process.returncode}")
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def _made(folder: Path, program: Path, make: Callable[[Path], None]) -> Path:
    """A program in a folder of the cache."""
    try:
        made_once(folder, make)
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or b""
        last = output.decode(errors="replace").strip().rpartition("\n")[2]
        raise StoreUnavailable(f"{folder.name}: {error} {last}") from error
    return program


def _versitygw_program() -> Path:
    if shutil.which("go") is None:
        raise StoreUnavailable("versitygw is built by Go, which is not here")
    folder = _CACHE / f"versitygw-{_VERSITYGW.rpartition('@')[2]}"

    def make(folder: Path) -> None:
        run_quietly(["go", "install", _VERSITYGW], GOBIN=str(folder), GOFLAGS="-mod=mod")

    return _made(folder, folder / "versitygw", make)


def _azurite_program() -> Path:
    if shutil.which("npm") is None:
        raise StoreUnavailable("Azurite comes from npm, which is not here")
    folder = _CACHE / _AZURITE.replace("@", "-")

    def make(folder: Path) -> None:
        folder.mkdir()
        run_quietly(["npm", "install", "--silent", "--no-audit", "--prefix", str(folder), _AZURITE])

    return _made(folder, folder / "node_modules" / ".bin" / "azurite-blob", make)


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
