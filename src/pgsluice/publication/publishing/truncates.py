"""TRUNCATE of a partitioned table whose changes the server sends partition by partition.

The server's Truncate message then has the partitions and not the root, whatever the statement
named. PostgreSQL itself, publishing under the root's name, sends a Truncate only if the statement
named the root. pgsluice does not know the statement, but it can see whether the message has all of
the root's partitions: then the root is empty, and a TRUNCATE of the root is published. For some
partitions, nothing is published, as in PostgreSQL.

Source: src/backend/replication/pgoutput/pgoutput.c (pgoutput_truncate, get_rel_sync_entry).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from pgsluice.columnar.changes import TRUNCATE, RelationChanges
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable

ChangePosition = tuple[int, int]
"""The position and ordinal of a change."""


def leaves_of(root: SourceTable, catalog: SourceCatalog) -> frozenset[int]:
    """The OIDs of the tables that have a partitioned table's rows; a plain table's own OID."""
    if not root.is_partitioned:
        return frozenset((root.oid,))
    return frozenset(table.oid for table in catalog.below(root) if not table.is_partitioned)


def whole_truncates(
    runs: Iterable[RelationChanges], leaves: Collection[int]
) -> frozenset[ChangePosition]:
    """The TRUNCATEs that empty all leaf partitions of a root.

    Args:
        runs: decoded changes, with all changes of the leaf partitions.
        leaves: the leaf partitions of the root.
    """
    emptied: dict[ChangePosition, set[int]] = {}
    for run in runs:
        if run.relation.oid not in leaves:
            continue
        for change in np.flatnonzero(run.actions == TRUNCATE).tolist():
            position = int(run.positions[change]), int(run.ordinals[change])
            emptied.setdefault(position, set()).add(run.relation.oid)
    return frozenset(position for position, oids in emptied.items() if oids == set(leaves))
