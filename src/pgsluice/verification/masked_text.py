"""Masks as SQL: the source's server computes what the target has in place of a value.

The secret of the mask ``hash`` reaches the server as a setting of the session, so that no statement
has it: statements are shown in ``pg_stat_activity`` and may be logged. The server has the values
themselves, so that it could not learn more from the secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, LiteralString

import psycopg
from psycopg import sql

from pgsluice.errors import PgsluiceError

_BLOCK_BYTES = 64
"""SHA-256's block, to which HMAC fills the key up (RFC 2104)."""
_INNER, _OUTER = 0x36, 0x5C
_SHA256: LiteralString = (
    "encode(sha256(decode(current_setting('pgsluice.mask_outer'), 'hex') ||"
    " sha256(decode(current_setting('pgsluice.mask_inner'), 'hex') ||"
    " convert_to({}, 'UTF8'))), 'hex')"
)


@dataclass(frozen=True, slots=True)
class SourceMask:
    """How a column's text is masked at the target.

    Attributes:
        kind: ``null``, ``hash`` or ``last4``.
        key: the secret of ``hash``.
    """

    kind: Literal["null", "hash", "last4"]
    key: bytes = field(default=b"", repr=False)


def give_secrets(connection: psycopg.Connection[Any], masks: Iterable[SourceMask]) -> None:
    """Give a session what :func:`masked_text` needs, until its transaction ends.

    Raises:
        PgsluiceError: the server is older than 11, and has no SHA-256.
    """
    keys = {mask.key for mask in masks if mask.kind == "hash"}
    if not keys:
        return
    if connection.info.server_version < 110000:
        raise PgsluiceError(
            'pgsluice cannot compare columns with the mask "hash" on PostgreSQL 10, which has no '
            "SHA-256",
            hint="compare the tables without such columns: `pgsluice verify CONFIG TABLE …` with "
            "their names; or upgrade the server to PostgreSQL 11 or newer",
        )
    (key,) = keys  # one secret for a subscription
    short = key if len(key) <= _BLOCK_BYTES else hashlib.sha256(key).digest()
    padded = short.ljust(_BLOCK_BYTES, b"\0")
    for name, pad in (("mask_inner", _INNER), ("mask_outer", _OUTER)):
        value = bytes(byte ^ pad for byte in padded).hex()
        connection.execute("SELECT set_config(%s, %s, true)", [f"pgsluice.{name}", value])


def masked_text(text: sql.Composable, mask: SourceMask) -> sql.Composable:
    """The expression of a masked text.

    Args:
        text: the expression of the value's text, which is not NULL.
    """
    match mask.kind:
        case "null":
            return sql.SQL("NULL::text")
        case "last4":
            shown = "({} || CASE WHEN length({}) > {} THEN right({}, 4) ELSE '' END)"
            return sql.SQL(shown).format(sql.Literal("****"), text, sql.Literal(8), text)
        case "hash":
            return sql.SQL(_SHA256).format(text)
