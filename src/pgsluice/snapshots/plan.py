"""The chunks of each table in a copy, from the sizes that the server reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import finds_pages, leaf_sizes
from pgsluice.catalog.rights import table_rights
from pgsluice.catalog.tables.key_bounds import key_ranges
from pgsluice.definitions.source_tables import LeafSize
from pgsluice.facts import RelationFacts
from pgsluice.snapshots.ranges import PORTION_BYTES, Division, Portion, divide_table

Sizes = Mapping[int, tuple[LeafSize, ...]]
"""The leaf partitions of each table, by the table's OID."""


def plan_portions(
    connection: Connection,
    tables: Collection[RelationFacts],
    *,
    at_once: int = 1,
    most_bytes: int | None = None,
) -> dict[int, tuple[Portion, ...]]:
    """The chunks of each table by its OID.

    A table whose size is unknown, because it is locked or gone, is one chunk: its task reports the
    problem if it still exists.

    Args:
        connection: a connection with the snapshot of the copies.
        at_once: how many chunks are read at the same time, at most.
        most_bytes: the approximate upper limit of a chunk's size; None: PORTION_BYTES.
    """
    division = Division(most_bytes or PORTION_BYTES, at_once)
    sizes = leaf_sizes(connection, [facts.oid for facts in tables])
    by_pages = _divided_by_pages(connection, sizes)
    by_key = {oid: leaves for oid, leaves in sizes.items() if oid not in by_pages}
    bounds = key_ranges(connection, _range_counts(by_key, division))
    return {
        oid: divide_table(
            oid, sizes.get(oid, ()), division, by_pages=oid in by_pages, key_bounds=bounds
        )
        for oid in (facts.oid for facts in tables)
    }


def _divided_by_pages(connection: Connection, sizes: Sizes) -> set[int]:
    """The tables that are read by ranges of pages."""
    if not finds_pages(connection):
        return set()
    rights = table_rights(connection, sizes)
    # Rights on single columns are seldom rights on ctid.
    return {
        oid
        for oid, leaves in sizes.items()
        if _are_readable(leaves)
        or ((right := rights.get(oid)) and (right.may_select or "ctid" in right.columns))
    }


def _are_readable(leaves: tuple[LeafSize, ...]) -> bool:
    return all(leaf.is_readable for leaf in leaves)


def _range_counts(sizes: Sizes, division: Division) -> dict[int, int]:
    """How many ranges each leaf partition is divided into, if it is too large for one chunk; the
    table itself, if its leaves cannot be read directly."""
    named = {
        oid: size_bytes
        for table, leaves in sizes.items()
        for oid, size_bytes in (
            [(leaf.oid, leaf.size_bytes) for leaf in leaves]
            if _are_readable(leaves)
            else [(table, sum(leaf.size_bytes for leaf in leaves))]
        )
    }
    return {
        oid: division.ranges(size_bytes)
        for oid, size_bytes in named.items()
        if size_bytes > division.most_bytes
    }
