"""What the last look at a table knows of its columns: it goes with the table's changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pgsluice.schema_rules.source import SourceFingerprint


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """The columns that are sent, and how they came.

    Attributes:
        types: name -> type OID and typmod, of the columns that are sent.
        added: see :class:`SourceFingerprint`.
        key: likewise.
        has_unnamed: columns came and went between two looks; nobody knows their names.
    """

    types: Mapping[str, tuple[int, int]]
    added: Mapping[str, str | None] = field(default_factory=dict)
    key: tuple[str, ...] | None = None
    has_unnamed: bool = False

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> KnownColumns:
        """From its fields, as JSON has them."""
        types = {name: (oid, typmod) for name, (oid, typmod) in raw["types"].items()}
        key = None if raw["key"] is None else tuple(raw["key"])
        return cls(types, raw["added"], key, raw["has_unnamed"])


@lru_cache(maxsize=10_000)
def known_columns(fingerprint: str) -> KnownColumns | None:
    """What a fingerprint, as the record keeps it, says of a table's columns; None without one."""
    known = SourceFingerprint.parse(fingerprint)
    if known is None:
        return None
    types = {c.name: (c.type_oid, c.typmod) for c in known.columns.values() if c.is_sent}
    return KnownColumns(types, known.added, known.key, known.unnamed > 0)


def with_former_names(fingerprint: str, names: Collection[str]) -> str:
    """A fingerprint, as the record keeps it, with more columns that the target may have."""
    known = SourceFingerprint.parse(fingerprint)
    if known is None:
        return fingerprint
    return replace(known, former_names=known.former_names | frozenset(names)).to_text()


def cause_of_copy(reason: str, fingerprint: str) -> str:
    """What a copy is made for: a reason, and what the catalog says of the table. 16 hex digits.

    A table that comes to the same again after its copy would be copied for ever. What a copy
    itself changes in the record, and new files, make no difference.
    """
    known = SourceFingerprint.parse(fingerprint)
    facts: list[Any] = [reason]
    if known is not None:
        facts += [known.written, known.rules, known.attnums, sorted(known.columns.items())]
        facts += [sorted(each) for each in (known.actions, known.listings, known.filenodes)]
        facts += [sorted(known.types.items()), known.key]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
