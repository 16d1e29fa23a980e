"""What becomes of partitioned tables: which were copied, and which got rows of partitions alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.databases import Database
from tests.support.pipeline import Pipeline

from pgsluice.errors import SpoolError
from pgsluice.schema_rules.known import SourceFingerprint
from pgsluice.spool import TableRecord, find_record

_PAUSE_S = 0.05
_PARTITIONS = """
WITH RECURSIVE below(root, oid, attached) AS (
    SELECT c.oid, c.oid, i.xmin::text::bigint
    FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
    WHERE c.relname = ANY (%s) AND c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT b.root, i.inhrelid, i.xmin::text::bigint
    FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
)
SELECT r.relname::text, b.oid::bigint, b.attached, c.relfilenode::bigint, c.relkind = 'r'
FROM below b JOIN pg_class r ON r.oid = b.root JOIN pg_class c ON c.oid = b.oid
"""


class Partitions(NamedTuple):
    """A table's: it, if it is one, and those below it -> xmin of their row in pg_inherits; and
    leaf -> file."""

    attachments: dict[int, int]
    files: dict[int, int]


@dataclass
class PartitionWatch:
    """Watches the records of a run's subscriptions.

    Attributes:
        replaced: subscription and table -> how often only rows of partitions were replaced.
        copied: subscription and partitioned table -> how often it was copied after its first copy.
        reasons: why these were.
        leaves_copied: how often leaves were that are tables of their own.
    """

    one: Pipeline
    subscriptions: Collection[str]
    replaced: Counter[tuple[str, str]] = field(default_factory=Counter)
    copied: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    leaves_copied: int = 0
    _seen: dict[tuple[str, int], TableRecord] = field(default_factory=dict)

    def until(self, ended: threading.Event) -> None:
        """Watch until the event."""
        while not ended.wait(_PAUSE_S):
            self.look()

    def look(self) -> None:
        """Compare the records with those before."""
        for subscription in self.subscriptions:
            for oid, table in self.tables(subscription).items():
                if not table.is_active:
                    continue
                before = self._seen.get((subscription, oid), table)
                self._seen[subscription, oid] = table
                name = subscription, table.name
                if (copies := table.copy_number - before.copy_number) and _is_leaf(oid, table):
                    self.leaves_copied += copies
                elif copies:
                    self.copied[name] += copies
                    self.reasons[table.copied.reason] += copies
                elif table.copied.position != before.copied.position:
                    self.replaced[name] += 1

    def tables(self, subscription: str) -> Mapping[int, TableRecord]:
        """A subscription's tables by OID."""
        with suppress(SpoolError, FileNotFoundError):
            record = find_record(self.one.spool, subscription)
            return {} if record is None else record.tables
        return {}

    def has_seen(self, table: str, leaves: Collection[int]) -> bool:
        """Whether the last look that counts for a table has seen some leaves, in all subscriptions
        that have the table: what comes and goes between two looks, none can see."""
        for subscription in self.subscriptions:
            for known in self.tables(subscription).values():
                if known.name == table:
                    seen = SourceFingerprint.parse(known.source.fingerprint)
                    if seen is None or not seen.filenodes.keys() >= {*leaves}:
                        return False
        return True

    def is_copying(self, table: str) -> bool:
        """Whether a table waits for a copy, or for rows of partitions, in some subscription."""
        return any(
            known.name == table and known.is_to_copy
            for subscription in self.subscriptions
            for known in self.tables(subscription).values()
        )

    def is_behind(self, subscription: str, tables: Collection[str]) -> str:
        """Why the last look that counts for tables is not the last one that there is to be; empty:
        it is, all are active, and none is to be verified."""
        now = _partitions(self.one.database, tables)
        known = {table.name: table for table in self.tables(subscription).values()}
        for name in tables:
            table = known.get(name)
            if table is None or not table.is_active or table.pending.verification:
                return f"{subscription}: {name} is {table}"
            seen = SourceFingerprint.parse(table.source.fingerprint)
            if seen is None or Partitions(seen.attachments, seen.filenodes) != now[name]:
                return f"{subscription}: {name} has {now[name]}, known is {seen}"
        return ""


def _is_leaf(oid: int, table: TableRecord) -> bool:
    known = SourceFingerprint.parse(table.source.fingerprint)
    return known is not None and oid in known.filenodes


def _partitions(shop: Database, tables: Collection[str]) -> dict[str, Partitions]:
    found = {name: Partitions({}, {}) for name in tables}
    with shop.connect() as connection:
        rows = connection.execute(_PARTITIONS, [list(tables)]).fetchall()
    for name, oid, attached, file, is_leaf in rows:
        if attached is not None:
            found[name].attachments[oid] = attached
        if is_leaf:
            found[name].files[oid] = file
    return found
