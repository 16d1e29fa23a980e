"""What a look at a table compares, and which of its partitions came, went or are others now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pgsluice.schema_rules.known import SourceFingerprint


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a table has to compare.

    Attributes:
        table: ``schema.table``, for messages.
        before, now: the fingerprints.
        server_version: of the source, such as 180000.
        came_empty: those of the new partitions that had no rows when they became partitions.
        perhaps_empty: those of which nobody knows.
        created: those that CREATE TABLE … PARTITION OF made, and nothing has attached since.
        unseen: the leaves whose changes came since the look before, and that it has not found ->
            the only rows that they may have had, as SQL; None: not known.
        has_some_leaves: a publication of pgsluice gives the table some leaves of its root.
        missing: leaf -> column -> the value, as text, of rows from before the column was added.
        fresh: leaves whose files have rows that the server has not counted yet.
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
    """Leaves that were not there."""
    return set(now.filenodes.keys() - before.filenodes.keys())


def added_partitions(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """The leaves that were not there, and the partitioned tables above them that were not."""
    leaves = added_leaves(before, now)
    return leaves | (now.attachments.keys() - before.attachments.keys()) if leaves else set()


def renewed_leaves(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """Leaves with a new file."""
    both = before.filenodes.keys() & now.filenodes.keys()
    return {leaf for leaf in both if before.filenodes[leaf] != now.filenodes[leaf]}


def resumed_leaves(look: Look) -> set[int]:
    """Leaves that are sent and were not, as new ones where publications list leaves (before 13)."""
    resumed = (look.now.sent - look.before.sent) & look.before.filenodes.keys()
    return {*resumed} if look.before.sent else set()


def lost_partitions(look: Look) -> set[int]:
    """Leaves, and those above leaves whose bounds are known: before one went, it may have got
    another leaf with rows, which no look has found."""
    before, now = look.before, look.now
    above = (before.attachments.keys() - now.attachments.keys()) & before.bounds.keys()
    leaves = before.filenodes.keys() | look.unseen.keys()
    return {*(leaves - now.filenodes.keys()), *above}


def other_attachments(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """Partitions that were there, and were attached since."""
    then, later = before.attachments, now.attachments
    return {oid for oid in then.keys() & later.keys() if then[oid] != later[oid]}


def attached_anew(look: Look) -> set[int]:
    anew = other_attachments(look.before, look.now)
    return anew | _perhaps_attached_anew(look, is_sure=not anew)


def _perhaps_attached_anew(look: Look, *, is_sure: bool) -> set[int]:
    """Leaves that came with the stream and are there: they may have been detached meanwhile, unless
    they have been attached only once."""
    unseen = look.unseen.keys() & look.now.filenodes.keys()
    emptied = unseen & look.before.emptied.keys()
    return emptied | (unseen - (_attached_once(look) if is_sure else set()))


def _attached_once(look: Look) -> set[int]:
    """Leaves that were made as partitions, and so were all above them that are new."""
    above = added_partitions(look.before, look.now) - look.now.filenodes.keys()
    return {*look.created} if above <= {*look.created} else set()


def emptied_leaves(look: Look) -> set[int]:
    """New leaves without rows that may have been attached before, have got rows and lost them."""
    return (added_leaves(look.before, look.now) & {*look.came_empty}) - _attached_once(look)


def are_bounds_known(look: Look, anew: Collection[int]) -> bool:
    """Whether partitions that were attached anew have had no bounds but those that looks found."""
    attached = other_attachments(look.before, look.now) - _attached_once(look)
    return not attached and all(look.unseen.get(leaf, "") is not None for leaf in anew)


def are_rows_known(look: Look, gone: Collection[int], anew: Collection[int]) -> bool:
    """Whether bounds tell which rows the partitions that are gone had, and those have that were
    attached anew."""
    before = look.before
    seen = before.filenodes.keys() | before.attachments.keys()
    lost = look.unseen.keys() - look.now.filenodes.keys()
    return (
        seen & {*gone} <= before.bounds.keys()
        and all(look.unseen[leaf] is not None for leaf in lost)
        and {*anew} <= look.now.bounds.keys()
    )


def rows_to_replace(look: Look, partitions: Collection[int]) -> dict[int, tuple[str, ...]]:
    """What these partitions and the leaves below them had and have: a partition that was attached
    anew may have another bound since, and other leaves."""
    rows: dict[int, tuple[str, ...]] = {}
    for partition in partitions:
        bounds = [each.bounds.get(partition) for each in (look.before, look.now)]
        bounds.append(look.unseen.get(partition))
        known = tuple(dict.fromkeys(bound for bound in bounds if bound is not None))
        leaves = look.before.leaves_below(partition) | look.now.leaves_below(partition)
        for leaf in {partition, *leaves}:
            rows[leaf] = (*rows.get(leaf, ()), *known)
    return rows
