"""Which tables have work in a batch.

A table's work is everything after *its own* ``applied_through`` up to the batch's end, wherever the
batch starts. So a table that was deferred, copied or behind catches up by the same rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgsluice.lsn import Lsn
from pgsluice.schema_rules.known import (
    SourceFingerprint,
    is_key_proved,
    known_columns,
    sends_every_change,
)
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableRecord
from pgsluice.spool.segments.header import ChainHeader
from pgsluice.subscription.base.work import TableWork


def plan_tables(
    reader: SpoolReader,
    record: SubscriptionRecord,
    end: Lsn,
    *,
    with_deferred: bool = False,
    among: Mapping[int, TableRecord] | None = None,
) -> list[TableWork]:
    """The tables that have changes between their own position and ``end``.

    Parked tables and tables without a copy have no work. Deferred tables, whose next merge has to
    wait, are included only with ``with_deferred``. The driver clears the mark in the record when
    the wait is over, so that every plan from one record is the same.

    Args:
        among: plan only these tables of the record; None: all.
    """
    tables = {
        oid: table
        for oid, table in (record.tables if among is None else among).items()
        if table.is_active
        and table.applied_through < end
        and (with_deferred or table.pending.due is None)
    }
    if not tables:
        return []
    begin = min(table.applied_through for table in tables.values())
    owners, sizes = owners_of(record), dict[int, dict[int, int]]()
    sinces = dict[int, float]()
    for info in reader.segments(begin, end):
        for owner, relations in changed_tables(info.header, tables, owners).items():
            if info.end > tables[owner].applied_through:
                changed = sizes.setdefault(owner, {})
                sinces.setdefault(owner, info.committed_from)
                for oid, size in relations.items():
                    changed[oid] = changed.get(oid, 0) + size
    return [
        table_work(record, owner, end, changed, sinces[owner])
        for owner, changed in sorted(sizes.items())
    ]


def owners_of(record: SubscriptionRecord) -> Mapping[int, int]:
    """Relations that belong to another table than that of their partition root, with their
    tables."""
    return {oid: owner for owner, table in record.tables.items() for oid in table.source.relations}


def changed_tables(
    header: ChainHeader, among: Mapping[int, TableRecord], owners: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """The tables with changes in a segment, each with the bytes of its relations."""
    changed: dict[int, dict[int, int]] = {}
    counts = header.counts.relations
    for oid, root in header.roots.items():
        owner = owners.get(oid)
        if owner is None and root in among and not among[root].source.relations:
            owner = root
        if owner is not None and owner in among:
            changed.setdefault(owner, {})[oid] = counts[oid].size_bytes
    return changed


def plan_alterations(
    reader: SpoolReader,
    record: SubscriptionRecord,
    *,
    with_deferred: bool = False,
    among: Mapping[int, TableRecord] | None = None,
) -> list[TableWork]:
    """The work of tables whose targets need columns that a catalog refresh has found.

    Everything that was committed before the catalog refresh is applied first, so that no row
    without the columns can follow. The other arguments are those of :func:`plan_tables`.
    """
    due = {
        oid: (table, table.pending.columns)
        for oid, table in (record.tables if among is None else among).items()
        if table.is_active
        and table.pending.columns is not None
        and (with_deferred or table.pending.due is None)
    }
    if not due:
        return []
    end = record.position
    # What the server sends up to the frontier is in the spool; the frontier is read first.
    frontier = reader.frontier()
    reached = frontier if reader.position() <= end else end
    behind = {work.relation_oid for work in plan_tables(reader, record, end, with_deferred=True)}
    return [
        replace(
            table_work(record, oid, max(end, table.applied_through), {}), alter_facts=columns.facts
        )
        for oid, (table, columns) in sorted(due.items())
        if oid not in behind and columns.after <= max(reached, table.applied_through)
    ]


def table_work(
    record: SubscriptionRecord,
    oid: int,
    end: Lsn,
    changed: Mapping[int, int],
    since: float = 0.0,
) -> TableWork:
    """The work of one table.

    Args:
        changed: bytes of changes, by relation.
    """
    table = record.tables[oid]
    looked = SourceFingerprint.parse(table.source.fingerprint)
    return TableWork(
        relation_oid=oid,
        namespace=table.namespace,
        name=table.name,
        after=table.applied_through,
        through=end,
        committed=table.committed,
        copy_number=table.copy_number,
        oids=tuple(sorted(changed)),
        is_complete=sends_every_change(table.source.fingerprint),
        is_partitioned=looked is not None and looked.filenodes.keys() != {oid},
        is_key_proved=is_key_proved(table.source.fingerprint, table.applied_through),
        known=known_columns(table.source.fingerprint),
        looked_through=record.looked_through,
        looked_at=table.source.lsn,
        leaves=frozenset() if looked is None else looked.sent,
        size_bytes=sum(changed.values()),
        merge_s=table.merge_s,
        since=since,
        rejects=table.rejects,
    )
