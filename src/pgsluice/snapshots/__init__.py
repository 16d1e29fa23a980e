"""Reads tables under a snapshot with a known position in the WAL.

A new replication slot exports the snapshot, and the snapshot's position is the slot's consistent
point: the snapshot has all earlier commits, and the stream has all later ones. Snapshots of
``pg_export_snapshot`` have no such position.

A table is divided into chunks (portions), which different processes can read at the same time.
"""
