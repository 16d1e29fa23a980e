"""TRUNCATE of a partitioned table whose changes the server sends partition by partition.

The server's T message then names the partitions and not the root, whichever of them the statement
named. PostgreSQL's own publication under the root's name sends a T if the statement named the
root, and none if it named only partitions. pgsluice cannot know what the statement named, but it
can see whether a T names all of the root's partitions: then the root is empty, and a TRUNCATE of
the root is sent. A T of some partitions sends nothing, as with PostgreSQL.

Source: src/backend/replication/pgoutput/pgoutput.c (pgoutput_truncate, get_rel_sync_entry).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from pgsluice.columnar.changes import TRUNCATE, RelationChanges
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable

ChangePosition = tuple[int, int]
"""Position and ordinal of a change."""


def leaves_of(root: SourceTable, catalog: SourceCatalog) -> frozenset[int]:
    """The OIDs of the tables that hold a partitioned table's rows; a plain table's own OID."""
    if not root.is_partitioned:
        return frozenset((root.oid,))
    return frozenset(table.oid for table in catalog.below(root) if not table.is_partitioned)


def whole_truncates(
    runs: Iterable[RelationChanges], leaves: Collection[int]
) -> frozenset[ChangePosition]:
    """The TRUNCATEs that empty all leaves of a root.

    Args:
        runs: decoded changes that hold all those of the leaves.
        leaves: of the root.
    """
    emptied: dict[ChangePosition, set[int]] = {}
    for run in runs:
        if run.relation.oid not in leaves:
            continue
        for change in np.flatnonzero(run.actions == TRUNCATE).tolist():
            position = int(run.positions[change]), int(run.ordinals[change])
            emptied.setdefault(position, set()).add(run.relation.oid)
    return frozenset(position for position, oids in emptied.items() if oids == set(leaves))
