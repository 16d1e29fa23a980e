"""A connection string together with the command that prints its password, as one text.

So both reach each process that connects, executors included, and none of them has a password.
"""

from __future__ import annotations

import json
from typing import NamedTuple

_MARK = "password_command:"


class Conninfo(NamedTuple):
    """How to connect.

    Attributes:
        dsn: libpq's connection string.
        password_command: prints the password; None: libpq finds it.
    """

    dsn: str
    password_command: str | None = None


def join_conninfo(dsn: str, password_command: str | None) -> str:
    """The two as one text; the connection string itself without a command."""
    return dsn if password_command is None else _MARK + json.dumps([dsn, password_command])


def split_conninfo(text: str) -> Conninfo:
    """The opposite of :func:`join_conninfo`."""
    if not text.startswith(_MARK):
        return Conninfo(text)
    dsn, command = json.loads(text.removeprefix(_MARK))
    return Conninfo(dsn, command)
