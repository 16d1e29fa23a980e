"""Passwords that a command prints, such as short-lived tokens of a cloud.

A process calls the command before its first connection, and again when the server refuses the
password. It keeps the password in memory only. Neither the command's output nor its errors are
logged: they may have the password.
"""

from __future__ import annotations

import subprocess
import threading

from pgsluice.errors import SourceUnreachable
from pgsluice.system.processes import Part, start

_TIMEOUT_S = 30.0


_PASSWORDS: dict[str, str] = {}
"""Those of this process, by their commands."""
_LOCK = threading.Lock()


def password_of(command: str, *, refused: str | None = None) -> str:
    """The password that a command prints.

    Args:
        refused: the password that the server refused; the command is called again, unless another
            thread has done so since.

    Raises:
        SourceUnreachable: the command failed. It may work later.
    """
    with _LOCK:
        known = _PASSWORDS.get(command)
        if known is None or known == refused:
            known = _PASSWORDS[command] = _called(command)
        return known


def _called(command: str) -> str:
    """The first line that a shell's command prints."""
    try:
        done = start(
            Part.PASSWORD_COMMAND,
            lambda: subprocess.run(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            ),
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"did not end within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise _failed(f"did not start: {error.strerror}") from None
    if done.returncode != 0:
        raise _failed(f"ended with exit code {done.returncode}")
    password = done.stdout.decode(errors="replace").partition("\n")[0].rstrip("\r")
    if not password:
        raise _failed("printed nothing")
    return password


def _failed(failure: str) -> SourceUnreachable:
    return SourceUnreachable(
        f"the program of password_command in [source] {failure}",
        hint="test the program as the user who runs pgsluice; pgsluice does not log its output, "
        "which may have the password",
    )
