"""The tasks of initial copies: they read chunks of tables, and stage their rows.

Every copy reads under the snapshot of a new replication slot (:mod:`pgsluice.snapshots`), and its
position is that slot's consistent point. :mod:`pgsluice.subscription.copies` decides which table is
copied when.

A renamed table is copied from its previous target, without a snapshot.
"""
