"""Programs of Debian's packages, unpacked and not installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_CACHE = Path(__file__).parents[2] / ".cache"


def debian_package(name: str) -> Path:
    """The files of a package, downloaded once; without Debian's packages, a skip."""
    folder = _CACHE / name
    if folder.exists():
        return folder
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            pytest.skip(f"{name} comes from Debian's package: there is no {needed}")
    _CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as fresh:
        done = subprocess.run(
            ["apt-get", "download", "-q", name],
            cwd=fresh,
            capture_output=True,
            text=True,
            check=False,
        )
        packages = list(Path(fresh).glob("*.deb"))
        if not packages:
            pytest.skip(f"{name} cannot be downloaded: {done.stderr.strip()[-200:]}")
        unpacked = Path(fresh, "unpacked")
        subprocess.run(["dpkg-deb", "-x", packages[0], unpacked], check=True)
        unpacked.rename(folder)
    return folder
