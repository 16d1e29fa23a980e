"""Connection strings: validation, masking of secrets, and the command that prints the password.

libpq accepts two forms, a URI and ``keyword=value`` pairs. Either can contain a password.
Source: the manual, "libpq - Connection Strings".
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_COMMAND_MARK = "password_command:"
MASK = "***"
_PORT = re.compile(r"[0-9]{0,5}", re.ASCII)
_URI_PATH = re.compile(r"\A[^:]*://[^/?]*")
"""The part of a URI before the database."""

_SECRETS = r"(?:password|sslpassword|oauth_client_secret|scram_client_key|scram_server_key)"
_IS_URI = re.compile(r"\A\s*postgres(?:ql)?://", re.IGNORECASE)
# Greedy up to the last "@": a password with an unescaped "@" is masked whole.
_URI_PASSWORD = re.compile(r"(\A\s*postgres(?:ql)?://[^:@/?#]*):.*@", re.IGNORECASE | re.DOTALL)
_URI_PARAMETER = re.compile(rf"([?&]{_SECRETS}=)[^&]*", re.IGNORECASE)
_KEYWORD = re.compile(
    rf"(\b{_SECRETS}\s*=\s*)(?:'(?:\\.|[^'\\])*'?|(?:\\.|[^\s\\])*)", re.IGNORECASE | re.DOTALL
)


def mask_dsn(dsn: str) -> str:
    """The connection string with each secret replaced by ``***``."""
    if _IS_URI.match(dsn):
        return _URI_PARAMETER.sub(rf"\1{MASK}", _URI_PASSWORD.sub(rf"\1:{MASK}@", dsn))
    return _KEYWORD.sub(rf"\1{MASK}", dsn)


def has_password(dsn: str) -> bool:
    """Whether a libpq connection string has a password."""
    import psycopg

    return "password" in psycopg.conninfo.conninfo_to_dict(dsn)


def why_no_dsn(dsn: str) -> str | None:
    """Why libpq cannot use the connection string; this does not connect.

    Returns:
        None if it can be used.
    """
    import psycopg  # imported late: only validation needs libpq this early

    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        return (
            'is not a libpq connection string, such as "postgresql://app@db/shop" '
            'or "host=db dbname=shop user=app"'
        )
    # libpq looks at them only when it connects, and prints them: they may be parts of a password.
    ports, hosts = (str(given.get(name) or "").split(",") for name in ("port", "host"))
    in_path = _IS_URI.match(dsn) and "@" in _URI_PATH.sub("", dsn).partition("?")[0]
    if all(map(_PORT.fullmatch, ports)) and not in_path and not any("@" in h[1:] for h in hosts):
        return None
    return (
        "has a host, a port or a database that cannot be one; in a password, @ is written as %40, "
        "/ as %2F and % as %25"
    )


class Conninfo(NamedTuple):
    """A connection string together with the command that prints its password.

    Attributes:
        dsn: libpq's connection string.
        password_command: prints the password; None: libpq finds it.
    """

    dsn: str
    password_command: str | None = None


def join_conninfo(dsn: str, password_command: str | None) -> str:
    """The two as one text; the connection string itself without a command.

    So both reach each process that connects, executors included, and none of them has a password.
    """
    return dsn if password_command is None else _COMMAND_MARK + json.dumps([dsn, password_command])


def split_conninfo(text: str) -> Conninfo:
    """The settings of a libpq connection string, as :func:`join_conninfo` joins them."""
    if not text.startswith(_COMMAND_MARK):
        return Conninfo(text)
    dsn, command = json.loads(text.removeprefix(_COMMAND_MARK))
    return Conninfo(dsn, command)
