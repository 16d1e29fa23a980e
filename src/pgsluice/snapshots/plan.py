"""What the tasks of a copy read: each table's portions, from what the server says of its size."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from pgsluice.catalog import LeafSize, finds_pages, key_ranges, leaf_sizes
from pgsluice.catalog.rights import table_rights
from pgsluice.facts import RelationFacts
from pgsluice.snapshots.ranges import (
    PORTION_BYTES,
    WHOLE,
    Division,
    LeafRows,
    Portion,
    divide_table,
)


def plan_portions(
    connection: psycopg.Connection[Any],
    tables: Collection[RelationFacts],
    *,
    at_once: int = 1,
    most_bytes: int | None = None,
) -> dict[int, tuple[Portion, ...]]:
    """The portions of each table by its OID.

    A table whose size cannot be had, because it is locked or gone, is one portion: its task says
    what is wrong, if it still is.

    Args:
        connection: in the snapshot that the tables are read under.
        at_once: how many portions are read side by side, at most.
        most_bytes: about how large a portion is at most; None: PORTION_BYTES.
    """
    division = Division(most_bytes or PORTION_BYTES, at_once)
    sizes = leaf_sizes(connection, [facts.oid for facts in tables])
    by_pages = finds_pages(connection)
    bounds: dict[int, tuple[str, ...]] = {}
    if not by_pages:
        bounds = key_ranges(connection, _range_counts(sizes.values(), division))
    rights = table_rights(connection, [facts.oid for facts in tables])
    portions = {}
    for facts in tables:
        # Rights on single columns are seldom rights on ctid.
        right = rights.get(facts.oid)
        has_ranges = by_pages and (right is None or right.may_select or "ctid" in right.columns)
        leaves = [LeafRows(leaf, bounds.get(leaf.oid, ())) for leaf in sizes.get(facts.oid, ())]
        portions[facts.oid] = (
            divide_table(leaves, division, is_partitioned=facts.kind == "p", by_pages=has_ranges)
            if leaves
            else WHOLE
        )
    return portions


def _range_counts(tables: Collection[tuple[LeafSize, ...]], division: Division) -> dict[int, int]:
    """How many ranges each leaf is divided into that is too large for one portion."""
    return {
        leaf.oid: division.ranges(leaf.size_bytes)
        for leaves in tables
        for leaf in leaves
        if leaf.size_bytes > division.most_bytes and leaf.is_readable
    }
