"""What a catalog refresh compares for one table, and which of its partitions were added, removed or
replaced."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pgsluice.schema_rules.known import SourceFingerprint


@dataclass(frozen=True, slots=True)
class Look:
    """What a catalog refresh compares of one table.

    Attributes:
        table: ``schema.table``, for messages.
        before, now: the fingerprints of the last refresh and of this one.
        server_version: the source's version, such as 180000.
        came_empty: new partitions that had no rows when they were attached.
        perhaps_empty: new partitions of which this is unknown.
        created: new partitions that CREATE TABLE … PARTITION OF created, and that were not attached
            again.
        unseen: leaf partitions with changes since the last refresh that it had not found -> an SQL
            condition on the only rows that they can have had; None: unknown.
        has_some_leaves: one of pgsluice's own publications gives the table only some leaves of its
            root.
        missing: leaf -> column -> the value of rows that are older than the column, as text.
        fresh: leaves with a new relfilenode whose rows the server has not counted yet.
    """

    table: str
    before: SourceFingerprint
    now: SourceFingerprint
    server_version: int
    came_empty: Collection[int] = ()
    perhaps_empty: Collection[int] = ()
    created: Collection[int] = ()
    unseen: Mapping[int, str | None] = field(default_factory=dict)
    has_some_leaves: bool = False
    missing: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    fresh: Collection[int] = ()


def added_leaves(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """The leaf partitions that a table got between two catalog refreshes."""
    return set(now.filenodes.keys() - before.filenodes.keys())


def added_partitions(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """The leaf partitions that a table got, and the new partitioned tables above them."""
    leaves = added_leaves(before, now)
    return leaves | (now.attachments.keys() - before.attachments.keys()) if leaves else set()


def renewed_leaves(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """The leaf partitions that got another relfilenode between two catalog refreshes."""
    both = before.filenodes.keys() & now.filenodes.keys()
    return {leaf for leaf in both if before.filenodes[leaf] != now.filenodes[leaf]}


def resumed_leaves(look: Look) -> set[int]:
    """Leaf partitions that are sent again; before 13, where publications list leaves, the new
    ones."""
    resumed = (look.now.sent - look.before.sent) & look.before.filenodes.keys()
    return {*resumed} if look.before.sent else set()


def lost_partitions(look: Look) -> set[int]:
    """Removed leaf partitions, and removed partitioned tables above them if their bounds are known:
    before it was removed, such a table may have got another leaf with rows, which no refresh has
    found."""
    before, now = look.before, look.now
    above = (before.attachments.keys() - now.attachments.keys()) & before.bounds.keys()
    leaves = before.filenodes.keys() | look.unseen.keys()
    return {*(leaves - now.filenodes.keys()), *above}


def other_attachments(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """The partitions of both catalog refreshes that were attached again in between."""
    then, later = before.attachments, now.attachments
    return {oid for oid in then.keys() & later.keys() if then[oid] != later[oid]}


def attached_anew(look: Look) -> set[int]:
    """Partitions that were attached again, and leaf partitions that were first seen in the stream:
    these may have been detached meanwhile, unless they were attached only once."""
    anew = other_attachments(look.before, look.now)
    unseen = look.unseen.keys() & look.now.filenodes.keys()
    emptied = unseen & look.before.emptied.keys()
    return anew | emptied | (unseen - (set() if anew else _attached_once(look)))


def _attached_once(look: Look) -> set[int]:
    """Leaf partitions that were created as partitions, with all new partitioned tables above
    them."""
    above = added_partitions(look.before, look.now) - look.now.filenodes.keys()
    return {*look.created} if above <= {*look.created} else set()


def emptied_leaves(look: Look) -> set[int]:
    """New leaf partitions without rows that may have been attached before, with rows."""
    return (added_leaves(look.before, look.now) & {*look.came_empty}) - _attached_once(look)


def are_bounds_known(look: Look, anew: Collection[int]) -> bool:
    """Whether partitions that were attached again had only bounds that refreshes have found."""
    attached = other_attachments(look.before, look.now) - _attached_once(look)
    return not attached and all(look.unseen.get(leaf, "") is not None for leaf in anew)


def are_rows_known(look: Look, gone: Collection[int], anew: Collection[int]) -> bool:
    """Whether bounds identify the rows of the removed partitions and of those that were attached
    again."""
    before = look.before
    seen = before.filenodes.keys() | before.attachments.keys()
    lost = look.unseen.keys() - look.now.filenodes.keys()
    return (
        seen & {*gone} <= before.bounds.keys()
        and all(look.unseen[leaf] is not None for leaf in lost)
        and {*anew} <= look.now.bounds.keys()
    )


def rows_to_replace(look: Look, partitions: Collection[int]) -> dict[int, tuple[str, ...]]:
    """The former and current bounds of these partitions and of the leaves below them: a partition
    that was attached again may have another bound and other leaves."""
    rows: dict[int, tuple[str, ...]] = {}
    for partition in partitions:
        bounds = [each.bounds.get(partition) for each in (look.before, look.now)]
        bounds.append(look.unseen.get(partition))
        known = tuple(dict.fromkeys(bound for bound in bounds if bound is not None))
        leaves = look.before.leaves_below(partition) | look.now.leaves_below(partition)
        for leaf in {partition, *leaves}:
            rows[leaf] = (*rows.get(leaf, ()), *known)
    return rows
