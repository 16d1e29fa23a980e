"""Which tables have work in a batch.

A table's work is everything past *its own* ``applied_through`` up to the batch's end, whatever
the batch's start: a table that was deferred, copied or behind catches up by the same rule, and
a lost or restored checkpoint changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pgsluice.lsn import Lsn
from pgsluice.schema_rules import sends_every_change
from pgsluice.spool import SpoolReader, SubscriptionRecord

NO_TABLE = 0
"""The relation OID of the one row that a batch without work has: it carries the batch's end."""


@dataclass(frozen=True, slots=True)
class TableWork:
    """One table's share of a batch: its changes in (after, through].

    Attributes:
        relation_oid: the table, or a partitioned table's root.
        namespace: the target's schema name (what the source's was when it was first copied).
        name: the target's table name, likewise.
        after: what the table is applied through.
        through: the batch's end.
        committed: position of pgsluice's newest commit at the target, as the record knows it.
        copy_number: which copy the target has to carry.
        oids: the relations with changes: the table, or its leaves.
        is_complete: the publications send all actions of the table.
    """

    relation_oid: int
    namespace: str
    name: str
    after: Lsn
    through: Lsn
    committed: Lsn
    copy_number: int
    oids: tuple[int, ...]
    is_complete: bool = False

    @classmethod
    def none(cls, end: Lsn) -> TableWork:
        """The work of a batch in which no table has changes: it only names the batch's end."""
        return cls(NO_TABLE, "", "", end, end, Lsn(0), 0, ())

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"{self.namespace}.{self.name}"

    def to_bytes(self) -> bytes:
        """As it travels to a task."""
        return json.dumps(
            {name: getattr(self, name) for name in self.__slots__}, ensure_ascii=False
        ).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> TableWork:
        """Read what :meth:`to_bytes` wrote."""
        raw = json.loads(payload)
        for name in ("after", "through", "committed"):
            raw[name] = Lsn(raw[name])
        return cls(**{**raw, "oids": tuple(raw["oids"])})


def plan_tables(
    reader: SpoolReader,
    record: SubscriptionRecord,
    end: Lsn,
    *,
    with_deferred: bool = False,
) -> list[TableWork]:
    """The tables that have changes between their own position and ``end``.

    Tables that are parked or not copied yet have none. Deferred ones (their
    merges cost more than the cadence allows) are left out unless ``with_deferred``; the driver
    clears the mark when the time has come, so that all who plan from one record agree.
    """
    tables = {
        oid: table
        for oid, table in record.tables.items()
        if table.is_active and table.applied_through < end and (with_deferred or not table.deferred)
    }
    if not tables:
        return []
    begin = min(table.applied_through for table in tables.values())
    owners = {oid: owner for owner, table in record.tables.items() for oid in table.relations}
    oids: dict[int, set[int]] = {}
    for info in reader.segments(begin, end):
        for oid, root in info.header.roots.items():
            owner = owners.get(oid)
            if owner is None and root in tables and not tables[root].relations:
                owner = root
            if owner in tables and info.end > tables[owner].applied_through:
                oids.setdefault(owner, set()).add(oid)
    return [
        TableWork(
            relation_oid=owner,
            namespace=tables[owner].namespace,
            name=tables[owner].name,
            after=tables[owner].applied_through,
            through=end,
            committed=tables[owner].committed,
            copy_number=tables[owner].copy_number,
            oids=tuple(sorted(changed)),
            is_complete=sends_every_change(tables[owner].fingerprint),
        )
        for owner, changed in sorted(oids.items())
    ]
