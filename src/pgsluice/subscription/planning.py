"""Which tables have work in a batch, and what tasks say that they have done.

A table's work is everything past *its own* ``applied_through`` up to the batch's end, whatever
the batch's start: a table that was deferred, copied or behind catches up by the same rule, and
a lost or restored checkpoint changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pgsluice.errors import Failure
from pgsluice.lsn import Lsn
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules import (
    KnownColumns,
    is_key_proved,
    known_columns,
    sends_every_change,
    sent_leaves,
)
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableRecord
from pgsluice.spool.segments.header import ChainHeader

_NOWHERE = Lsn(0)


@dataclass(frozen=True, slots=True)
class TableWork:
    """One table's share of a batch: its changes in (after, through].

    Attributes:
        relation_oid: the table, or a partitioned table's root.
        namespace, name: the target's: the name of the source's table at the last look.
        committed: position of pgsluice's newest commit at the target, as the record knows it.
        copy_number: which copy the target has to carry.
        oids: the relations with changes: the table, or its leaves.
        is_complete: the publications send all actions of the table.
        is_key_proved: see :func:`pgsluice.schema_rules.is_key_proved`.
        leaves: those that the server sent at the last look; empty: not known.
        known: what the last look at the table knows of its columns; None without a look.
        looked_through: see :class:`pgsluice.spool.SubscriptionRecord`.
        looked_at: see :class:`pgsluice.spool.TableRecord`.
        alter_facts: the target gets the columns of these facts, JSON; empty: none are due.
        size_bytes: of the changes, at most: the segments may have some that are applied.
        merge_s: how long the table's last merge took; 0: it has not been merged yet.
        leaf_bounds: what finds the rows of single leaves; of those that were truncated, as far as
            it is known.
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
    is_key_proved: bool = True
    known: KnownColumns | None = None
    alter_facts: str = ""
    looked_through: Lsn = _NOWHERE
    looked_at: Lsn = _NOWHERE
    leaves: frozenset[int] = frozenset()
    size_bytes: int = 0
    merge_s: float = 0.0
    leaf_bounds: Mapping[int, FilterEvaluator] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task did: the table is applied through the end of its work.

    Attributes:
        committed: position of pgsluice's newest commit at the target; 0: there is none.
        version: the target's version; -1: it does not exist.
        changes: how many changes were decoded.
        rows_skipped: rows that changes updated or deleted, and that the target lacks.
        skipped: the target had it all before.
        decode_s, merge_s: how long it took to make the net changes, and to write them.
        is_altered: the target has the columns that were due.
        doubt: why it is not proven which columns the changes have, so that the table has to be
            compared with the source; empty: it is.
    """

    committed: Lsn
    version: int = -1
    changes: int = 0
    rows_skipped: int = 0
    skipped: bool = False
    decode_s: float = 0.0
    merge_s: float = 0.0
    is_altered: bool = False
    doubt: str = ""

    def after(self, before: TaskResult) -> TaskResult:
        """Two pieces of one table's work as one result."""
        return replace(
            self,
            changes=before.changes + self.changes,
            rows_skipped=before.rows_skipped + self.rows_skipped,
            skipped=before.skipped and self.skipped,
            decode_s=before.decode_s + self.decode_s,
            merge_s=before.merge_s + self.merge_s,
            doubt=before.doubt or self.doubt,
        )


Outcome = tuple[TableWork, TaskResult | Failure]
"""A table's work, and what became of it."""


def plan_tables(
    reader: SpoolReader,
    record: SubscriptionRecord,
    end: Lsn,
    *,
    with_deferred: bool = False,
    among: Mapping[int, TableRecord] | None = None,
) -> list[TableWork]:
    """The tables that have changes between their own position and ``end``.

    Tables that are parked or not copied yet have none. Deferred ones (their
    merges cost more than the cadence allows) are left out unless ``with_deferred``; the driver
    clears the mark when the time has come, so that all who plan from one record agree.

    Args:
        among: those of the record's tables that are asked for; None: all.
    """
    tables = {
        oid: table
        for oid, table in (record.tables if among is None else among).items()
        if table.is_active and table.applied_through < end and (with_deferred or not table.deferred)
    }
    if not tables:
        return []
    begin = min(table.applied_through for table in tables.values())
    owners, sizes = owners_of(record), dict[int, dict[int, int]]()
    for info in reader.segments(begin, end):
        for owner, relations in changed_tables(info.header, tables, owners).items():
            if info.end > tables[owner].applied_through:
                changed = sizes.setdefault(owner, {})
                for oid, size in relations.items():
                    changed[oid] = changed.get(oid, 0) + size
    return [_work(record, owner, end, changed) for owner, changed in sorted(sizes.items())]


def owners_of(record: SubscriptionRecord) -> Mapping[int, int]:
    """The tables of the relations that do not belong to the table of their root."""
    return {oid: owner for owner, table in record.tables.items() for oid in table.relations}


def changed_tables(
    header: ChainHeader, among: Mapping[int, TableRecord], owners: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """Which of these tables have changes in a segment: the bytes of each of their relations.

    Args:
        header: the segment's.
        among: the tables that are asked for.
        owners: see :func:`owners_of`.
    """
    changed: dict[int, dict[int, int]] = {}
    counts = header.counts.relations
    for oid, root in header.roots.items():
        owner = owners.get(oid)
        if owner is None and root in among and not among[root].relations:
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
    """The tables whose targets get columns now that a look has found.

    Everything that was committed before the look is applied to them, so that none of their rows
    is to come without the columns.

    Args:
        among: see :func:`plan_tables`.
    """
    due = {
        oid: table
        for oid, table in (record.tables if among is None else among).items()
        if table.is_active and table.alter_after and (with_deferred or not table.deferred)
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
            _work(record, oid, max(end, table.applied_through), {}), alter_facts=table.alter_facts
        )
        for oid, table in sorted(due.items())
        if oid not in behind and table.alter_after <= max(reached, table.applied_through)
    ]


def _work(record: SubscriptionRecord, oid: int, end: Lsn, changed: Mapping[int, int]) -> TableWork:
    """The work of one table.

    Args:
        changed: the bytes of changes by the relation that has them.
    """
    table = record.tables[oid]
    return TableWork(
        relation_oid=oid,
        namespace=table.namespace,
        name=table.name,
        after=table.applied_through,
        through=end,
        committed=table.committed,
        copy_number=table.copy_number,
        oids=tuple(sorted(changed)),
        is_complete=sends_every_change(table.fingerprint),
        is_key_proved=is_key_proved(table.fingerprint, table.applied_through),
        known=known_columns(table.fingerprint),
        looked_through=record.looked_through,
        looked_at=table.looked_at,
        leaves=sent_leaves(table.fingerprint),
        size_bytes=sum(changed.values()),
        merge_s=table.merge_s,
    )
