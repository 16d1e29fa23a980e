"""The user account that runs the server, because PostgreSQL refuses to run as root.

An ordinary user runs the server as itself. For root, an account that exists on every system
and owns nothing (``nobody``) runs it, and becomes the owner of the folders that it uses.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from pgsluice.errors import ConfigError

_UNPRIVILEGED = ("nobody", "daemon", "postgres")
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - what is made in them has a new name, or is checked


class RunAs(TypedDict, total=False):
    """Keyword arguments of :class:`subprocess.Popen` that change the user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs the server.

    Attributes:
        is_other: we are root, and this is another account.
    """

    uid: int
    gid: int
    is_other: bool

    @classmethod
    def choose(cls) -> Account:
        """Our own account, or an unprivileged one if we are root.

        Raises:
            ConfigError: we are root and none of the usual accounts exists.
        """
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), is_other=False)
        for name in _UNPRIVILEGED:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            if entry.pw_uid != 0:
                return cls(entry.pw_uid, entry.pw_gid, is_other=True)
        raise ConfigError(
            "PostgreSQL refuses to run as root, and pgsluice found no other user of this machine "
            "to run it",
            hint=f"create one of the users {', '.join(_UNPRIVILEGED)}, or run pgsluice as an "
            "ordinary user",
        )

    def run_as(self) -> RunAs:
        """Arguments for :mod:`subprocess` to run a program under this account."""
        if not self.is_other:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        """Make the account the owner of a folder or file of pgsluice."""
        if self.is_other:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, folder: Path) -> bool:
        """Whether the account may enter the folder and all its parents."""
        return self._succeeds(["/bin/sh", "-c", 'cd "$0"', str(folder)])

    def temporary_folder(self) -> Path:
        """The system's temporary folder, or another one that the account may enter.

        Raises:
            ConfigError: there is none.
        """
        return self._first_to_enter(tempfile.gettempdir(), *_TEMPORARY)

    def programs_folder(self) -> Path:
        """A folder that the account may enter, for programs that later processes also use.

        TMPDIR is the last choice: it may belong to one run, or be in memory.

        Raises:
            ConfigError: there is none.
        """
        return self._first_to_enter(*_TEMPORARY, tempfile.gettempdir())

    def _first_to_enter(self, *folders: str) -> Path:
        for folder in folders:
            if not self.is_other or self.can_enter(Path(folder)):
                return Path(folder)
        raise ConfigError(
            f"the user with id {self.uid}, who runs PostgreSQL, cannot enter any temporary folder",
            hint="set the environment variable TMPDIR to a folder that every user can enter",
        )

    def can_run(self, program: Path) -> bool:
        """Whether the account can start the program; it is started with ``--version``."""
        return self._succeeds([str(program), "--version"])

    def _succeeds(self, command: list[str]) -> bool:
        try:
            done = subprocess.run(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                **self.run_as(),
            )
        except OSError:
            return False
        return done.returncode == 0


def own_folder(path: Path) -> Path:
    """A folder of pgsluice that every account may read; created if it does not exist.

    Programs are run from it, so a folder that another user prepared is refused.

    Raises:
        ConfigError: the folder belongs to another user, or others may write to it.
    """
    path.mkdir(mode=0o755, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or path.is_symlink():
        raise ConfigError(
            f"the folder {path} belongs to another user, or other users can write to it",
            hint="remove this folder, or set the environment variable TMPDIR to another folder",
        )
    path.chmod(0o755)
    return path


@contextmanager
def filled_apart(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` to fill and rename, so that it appears only when complete.

    The error of a block is dropped if another process has made the folder meanwhile.
    """
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        yield fresh
    except (OSError, subprocess.TimeoutExpired):
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
