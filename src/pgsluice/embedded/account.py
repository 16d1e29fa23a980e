"""Who runs the server: PostgreSQL refuses to be run by root.

An ordinary user runs it as is. Root lends it an account that exists on every system and owns
nothing (``nobody``); folders that the server uses are then given to that account.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from pgsluice.errors import ConfigError

_LENT = ("nobody", "daemon", "postgres")


class RunAs(TypedDict, total=False):
    """The keyword arguments of :class:`subprocess.Popen` that change the user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """The user under whose name the server runs.

    Attributes:
        uid: its user id.
        gid: its group id.
        is_lent: we are root and the account is another one.
    """

    uid: int
    gid: int
    is_lent: bool

    @classmethod
    def choose(cls) -> Account:
        """Our own account, or for root one to lend.

        Raises:
            ConfigError: we are root and none of the usual accounts exists.
        """
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), is_lent=False)
        for name in _LENT:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            if entry.pw_uid != 0:
                return cls(entry.pw_uid, entry.pw_gid, is_lent=True)
        raise ConfigError(
            "PostgreSQL does not run as root, and there is no account to run it under",
            hint=f"add one of these users ({', '.join(_LENT)}), or run as an ordinary user",
        )

    def run_as(self) -> RunAs:
        """What to pass to :mod:`subprocess` so that the program runs under this account."""
        if not self.is_lent:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        """Make the account the owner of a folder or file that is ours."""
        if self.is_lent:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, folder: Path) -> bool:
        """Whether every folder on the way to ``folder``, and itself, can be entered."""
        return self._succeeds(["/bin/sh", "-c", 'cd "$0"', str(folder)])

    def temporary_folder(self) -> Path:
        """The system's temporary folder, or another that the account can enter.

        Raises:
            ConfigError: there is none.
        """
        for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - mkdtemp follows
            if not self.is_lent or self.can_enter(Path(folder)):
                return Path(folder)
        raise ConfigError(
            f"user id {self.uid}, which runs PostgreSQL, can enter no temporary folder",
            hint="set TMPDIR to a folder that everybody may enter",
        )

    def can_run(self, program: Path) -> bool:
        """Whether the program can be started (it is asked for its version)."""
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
