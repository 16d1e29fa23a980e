"""Secrets that the configuration only names: in an environment variable, or in a file."""

from __future__ import annotations

import os
from pathlib import Path

from pgsluice.errors import ConfigError

_ENVIRONMENT, _FILE = "env:", "file:"
_LEAST_BYTES = 16


def why_no_secret(reference: str) -> str | None:
    """Why a text names no secret, to continue a sentence that begins with the key; None: it does.

    The text is not shown: it may be the secret itself.
    """
    if any(reference.removeprefix(kind) not in (reference, "") for kind in (_ENVIRONMENT, _FILE)):
        return None
    return 'has to name where the secret is: "env:NAME" or "file:/path"'


def read_secret(key: str, reference: str) -> bytes:
    """The secret that ``env:NAME`` or ``file:/path`` names; a file's last line break is no part.

    Args:
        key: the key in the configuration, for errors.

    Raises:
        ConfigError: it is not there, or shorter than 16 bytes.
    """
    if reference.startswith(_ENVIRONMENT):
        name = reference.removeprefix(_ENVIRONMENT)
        value = os.environb.get(os.fsencode(name))
        if value is None:
            raise ConfigError(
                f'the configuration\'s key "{key}" names the environment variable {name}, which is '
                "not set",
                hint=f"set the variable (export {name}=…) before you start pgsluice",
            )
        where = f"the environment variable {name}"
    else:
        path = Path(reference.removeprefix(_FILE)).expanduser()
        where = f"the file {path}"
        try:
            value = path.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise ConfigError(
                f'the configuration\'s key "{key}" names the file {path}, which pgsluice cannot '
                f"read: {error.strerror}",
                hint="write the secret into this file, and let the user who runs pgsluice read it",
            ) from None
    if len(value) < _LEAST_BYTES:
        raise ConfigError(
            f'the secret of the configuration\'s key "{key}", in {where}, has {len(value)} bytes: '
            f"a secret needs at least {_LEAST_BYTES}",
            hint="make a longer secret: openssl rand -hex 32",
        )
    return value
