"""Connection strings: validation, and masking of secrets.

libpq accepts two forms, a URI and ``keyword=value`` pairs. Either can contain a password.
Source: the manual, "libpq - Connection Strings".
"""

from __future__ import annotations

import re

MASK = "***"

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


def is_dsn(dsn: str) -> bool:
    """Whether libpq can parse the connection string; nothing is connected."""
    import psycopg  # imported late: only validation needs libpq this early

    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        return False
    return True
