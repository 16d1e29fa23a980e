"""TRUNCATE of a partitioned table whose changes the server sends partition by partition.

The server's T then names the partitions and not the root, whichever of them was named in the
statement. Published under the root's name, PostgreSQL sends a T for the root if the root was
named, and none if only partitions were. What can be told here is whether a T names all of the
root's partitions: then the root is empty, and that is a TRUNCATE of the root. A T of some is
nothing, as with PostgreSQL.

Source: src/backend/replication/pgoutput/pgoutput.c (pgoutput_truncate, get_rel_sync_entry).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from pgsluice.catalog.source_tables import SourceCatalog, SourceTable
from pgsluice.columnar.changes import TRUNCATE, RelationChanges

Place = tuple[int, int]
"""Position and ordinal of a change."""


def leaves_of(root: SourceTable, catalog: SourceCatalog) -> frozenset[int]:
    """The OIDs of the tables that hold a partitioned table's rows; its own if it is none."""
    if not root.is_partitioned:
        return frozenset((root.oid,))
    return frozenset(table.oid for table in catalog.below(root) if not table.is_partitioned)


def whole_truncates(runs: Iterable[RelationChanges], leaves: Collection[int]) -> frozenset[Place]:
    """The places at which all leaves of a root are truncated.

    Args:
        runs: decoded changes that hold all those of the leaves.
        leaves: of the root.
    """
    emptied: dict[Place, set[int]] = {}
    for run in runs:
        if run.relation.oid not in leaves:
            continue
        for change in np.flatnonzero(run.actions == TRUNCATE).tolist():
            position = int(run.positions[change]), int(run.ordinals[change])
            emptied.setdefault(position, set()).add(run.relation.oid)
    return frozenset(position for position, oids in emptied.items() if oids == set(leaves))
