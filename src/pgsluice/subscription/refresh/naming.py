"""Which target belongs to which table: a table is identified by its OID, a target by its name.

What a catalog refresh finds for one table:

======================  ===================  ====================================================
before                  now                  what is done
======================  ===================  ====================================================
not known               sent                 discovered; it takes the target of its name
has target ``a``        sent as ``a``        nothing
has target ``a``        sent as ``b``        renamed; it takes target ``b`` and leaves ``a``
has target ``a``        not sent             keeps ``a``, unless a table that is sent takes it:
                                             then it is forgotten
======================  ===================  ====================================================

A target that its table left, and that no other table takes, is no longer updated. It is a *former
target* (previous target) until a published table has its name again. A table that takes a target
replaces the rows of the tables before it, its *predecessors*. So two tables never have the same
target, whatever was renamed between two refreshes: in a swap, each table takes the target that the
other one leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgsluice.spool import FormerTarget, TableRecord, TargetName


@dataclass(frozen=True, slots=True)
class TargetChanges:
    """Which tables get or leave a target because of what a catalog refresh found.

    Attributes:
        renamed: tables that have another name now.
        freed: tables that waited for a target which another table now leaves.
        forgotten: unpublished tables whose target another table takes.
        predecessors: for each table that takes a target, the tables whose rows may be in it.
        former: all targets that are no longer updated because a renamed table left them.
    """

    renamed: Mapping[int, TargetName] = field(default_factory=dict)
    freed: frozenset[int] = frozenset()
    forgotten: frozenset[int] = frozenset()
    predecessors: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    former: Mapping[TargetName, FormerTarget] = field(default_factory=dict)


def assign_targets(
    known: Mapping[int, TableRecord],
    former: Mapping[TargetName, FormerTarget],
    sent: Mapping[int, TargetName],
) -> TargetChanges:
    """Give each published table the target of its name.

    Args:
        known: the subscription's tables by OID, including unpublished ones.
        former: the targets that are no longer updated.
    """
    owners: dict[TargetName, list[int]] = {}
    for oid, table in known.items():
        owners.setdefault(table.target_name, []).append(oid)
    # All tables whose rows a target may have, those of unfinished copies included.
    rows = {name: left.oids for name, left in former.items()}
    for name, oids in owners.items():
        every = (oid for owner in oids for oid in (owner, *known[owner].claim.predecessor_oids))
        rows[name] = tuple(dict.fromkeys((*every, *rows.get(name, ()))))
    taken = set(sent.values())
    renamed = {
        oid: name for oid, name in sent.items() if oid in known and known[oid].target_name != name
    }
    freed = frozenset(
        oid for oid in known.keys() & sent.keys() - renamed.keys() if len(owners[sent[oid]]) > 1
    )
    stand = {
        name: FormerTarget(rows[name], known[oids[-1]].target)
        for name, oids in owners.items()
        if name not in taken and renamed.keys() >= set(oids)
        if any(map(_may_have_rows, (known[oid] for oid in oids)))
    }
    return TargetChanges(
        renamed=renamed,
        freed=freed,
        forgotten=frozenset(
            oid for oid, table in known.items() if oid not in sent and table.target_name in taken
        ),
        predecessors={
            # Also its own: a table that comes back finds the rows that it left there.
            oid: tuple(other for other in rows.get(name, ()) if other != oid or name in former)
            for oid, name in sent.items()
            if oid not in known or oid in renamed or oid in freed
        },
        former={name: left for name, left in former.items() if name not in taken} | stand,
    )


def _may_have_rows(table: TableRecord) -> bool:
    """Whether a table's target may have rows, of the table or of its predecessors."""
    return table.is_active or table.copy_number > 0 or bool(table.claim.predecessor_oids)
