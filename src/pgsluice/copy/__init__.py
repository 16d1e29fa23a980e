"""The tasks of initial copies: they read chunks of tables, and stage their rows.

Every copy reads under the snapshot of a new replication slot (:mod:`pgsluice.snapshots`), and its
position is that slot's consistent point. :mod:`pgsluice.subscription.copies` decides which table is
copied when.

A renamed table is copied from its previous target, without a snapshot.

The exported names are imported when first used: a batch that deletes rows of partitions needs only
:mod:`pgsluice.copy.partition_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
    from pgsluice.copy.renamed import CopyRenamed

__getattr__ = on_demand(__name__, ("job", "renamed"))
