"""An image of a Containerfile, by podman or docker, as this machine can.

Where no registry of images can be reached, the stages begin with Debian's base system and its
Python (:func:`tests.soak.empty_root.debian_root`), imported as an image.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.soak.empty_root import debian_root, steps

_BASE, _IMAGE = "localhost/pgsluice-base", "localhost/pgsluice-test"
_ENVIRONMENT = re.compile(r"\A(PIP_|SSL_CERT_)")
_RESTRICTED = ("--runtime", "runc"), ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
"""Podman's options before and after ``run`` where limits cannot be raised, and cgroups are of both
versions."""


@contextmanager
def built(
    program: str, containerfile: Path, context: Path, folder: Path
) -> Iterator[tuple[str, list[str]]]:
    """The image's name, and the words between the program and an image that run it; the image is
    removed at the end of the block. Skips where none can be built or run.

    Args:
        folder: empty, on a disk.
    """
    if _fails(program, "info"):
        pytest.skip(f"{program} does not work here")
    is_podman = program.endswith("podman")
    default = next(rest for name, rest in steps(containerfile.read_text()) if name == "ARG")
    base = default.removeprefix("BASE=")
    ways: list[str] = []
    if _fails(program, "pull", "--quiet", base):
        base = _BASE
        archive = folder / "base.tar"
        subprocess.run(["tar", "-C", debian_root(folder), "-cf", archive, "."], check=True)
        subprocess.run([program, "import", archive, base], check=True, capture_output=True)
        archive.unlink()
    options = next((each for each in _ways_to_run(is_podman) if _runs(program, each, base)), None)
    if options is None:
        pytest.skip(f"{program} starts no container here")
    if is_podman:
        ways += ["--isolation", "chroot", "--layers=false"]
        ways += [f"--env={name}" for name in os.environ if _ENVIRONMENT.match(name)]
    build = [program, "build", "--network", "host", *ways, "--build-arg", f"BASE={base}"]
    build += ["-q", "-f", str(containerfile), "-t", _IMAGE, "."]
    try:
        done = subprocess.run(build, cwd=context, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        yield _IMAGE, options
    finally:
        _fails(program, "rmi", "-f", _IMAGE, _BASE)


def _ways_to_run(is_podman: bool) -> Iterator[list[str]]:
    yield ["run"]
    if is_podman:
        before, after = _RESTRICTED
        yield [*before, "run", *after]


def _runs(program: str, options: Sequence[str], image: str) -> bool:
    return not _fails(program, *options, "--rm", "--network", "host", image, "true")


def _fails(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0
