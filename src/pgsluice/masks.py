"""Masks: what a target gets in place of the values of a column.

A mask is applied when a value is decoded, so neither a target nor a staged file ever has the value
itself. The spool has it, because it keeps the messages of the server.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

HIDDEN = "****"
"""What stands for the characters that are not shown."""


class MaskKind(StrEnum):
    """The ways to mask a value.

    Attributes:
        NULL: every value is NULL.
        HASH: HMAC-SHA256 of the value's text, as 64 hexadecimal digits: the same text has the same
            hash in all columns and tables, so that they can be joined.
        LAST4: four asterisks and the last four characters; only asterisks for a text of at most
            eight characters.
    """

    NULL = "null"
    HASH = "hash"
    LAST4 = "last4"


SHORT = 8
"""A text of at most so many characters is hidden as a whole by :attr:`MaskKind.LAST4`."""


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """The mask of one column; ``key`` is the secret of :attr:`MaskKind.HASH`, and never printed."""

    kind: MaskKind
    key: bytes = field(default=b"", repr=False)

    @property
    def tells_values_apart(self) -> bool:
        """Whether different values of the column have different masks."""
        return self.kind is MaskKind.HASH

    @property
    def fingerprint(self) -> str:
        """Changes if the masked values would; it reveals nothing about the key."""
        if self.kind is not MaskKind.HASH:
            return self.kind
        return f"{self.kind}:{self._hash(b'pgsluice: the fingerprint of a mask')[:16]}"

    def apply(self, texts: pa.Array) -> pa.Array:
        """Mask texts, given as PostgreSQL prints the values, and return strings; null stays
        null."""
        if self.kind is MaskKind.NULL:
            return pa.nulls(len(texts), pa.string())
        coded = texts.dictionary_encode()
        masked = [self._masked(text) for text in coded.dictionary.to_pylist()]
        return pa.array(masked, pa.string()).take(coded.indices)

    def _masked(self, text: str) -> str:
        if self.kind is MaskKind.LAST4:
            return HIDDEN + text[-4:] if len(text) > SHORT else HIDDEN
        return self._hash(text.encode())

    def _hash(self, message: bytes) -> str:
        return hmac.digest(self.key, message, "sha256").hex()
